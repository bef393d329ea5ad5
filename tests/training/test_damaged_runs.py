"""What a run folder went through between two starts: the run goes on, or says why not."""

import json
import logging
import os
import pathlib
import resource
import shutil
import signal
import time
from typing import Any

import pytest

from groupwise.errors import GroupwiseError, Interrupted, RunFolderError
from groupwise.policy.chat_template import render_chat
from groupwise.recipe import parse, read_yaml
from groupwise.tracking import run as run_module
from groupwise.tracking.run import RunFolder, read_metrics, read_summary, restart
from groupwise.training import api
from groupwise.training.api import train
from groupwise.training.checkpoint import newest_checkpoint
from groupwise.training.signals import StopRequest
from policy.test_prompts import byte_tokenizer
from runs import digest, fingerprint, small_config

EVERY_STEP = ("checkpoint.every=1", "eval.every=1", "eval.problems=1", "eval.k=1")
CONFIG = small_config(*EVERY_STEP)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(CONFIG, folder, quiet=True)
    return folder


@pytest.fixture
def run(finished: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the run as it was before its end was written."""
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    return tmp_path / "run"


def everything(folder: pathlib.Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def killed_when_replacing(name: str, folder: pathlib.Path) -> None:
    """Train in a forked process that dies with `name` written and not yet in its place."""
    child = os.fork()
    if child == 0:
        original = os.replace

        def fatal(source: pathlib.Path, target: pathlib.Path) -> None:
            if pathlib.Path(source).name == name:
                os.kill(os.getpid(), signal.SIGKILL)
            original(source, target)

        os.replace = fatal
        try:
            train(CONFIG, folder, quiet=True)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize(
    "name",
    [
        "config.tmp",
        "metrics.jsonl.new",
        "findings.jsonl.new",
        "before.jsonl.new",
        pytest.param("best.new", marks=pytest.mark.slow),
        "step-000001.jsonl.gz.new",
        "step-000001.new",
    ],
)
def test_killed_in_the_first_moments_the_same_command_goes_on(
    name: str, finished: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    killed_when_replacing(name, folder)
    assert list(folder.rglob(name))
    with RunFolder(folder, CONFIG):
        pass
    if name in ("best.new", "step-000001.jsonl.gz.new"):
        train(CONFIG, folder, quiet=True)
        assert fingerprint(folder) == fingerprint(finished)
        assert not list(folder.rglob("*.new"))


@pytest.mark.parametrize("name", ["config.json", "model", "best.pt", "eval.py", "metrics.csv"])
def test_what_is_not_ours_is_left_alone(name: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(RunFolderError, match=f"not empty.*{name}"):
        RunFolder(tmp_path, CONFIG)
    assert (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize("harm", ["delete", "empty", "truncate", "garbage", "folder", "edit"])
def test_a_lost_config_is_written_again_from_the_checkpoints(
    harm: str, run: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = run / "config.yaml"
    text = path.read_text()
    path.unlink()
    if harm == "folder":
        path.mkdir()
    elif harm != "delete":
        edited = text.replace("lr: 0.001", "lr: 0.5")
        cut = text[: len(text) // 2]
        path.write_text({"empty": "", "truncate": cut, "garbage": "{[", "edit": edited}[harm])
    with caplog.at_level(logging.WARNING, "groupwise"), RunFolder(run, CONFIG):
        pass
    assert parse(read_yaml(path)) == CONFIG
    assert "it is written again" in caplog.text
    assert (run / "config.yaml.damaged").exists() == (harm != "delete")


def test_other_settings_are_refused_also_where_config_yaml_is_lost(run: pathlib.Path) -> None:
    (run / "config.yaml").unlink()
    with pytest.raises(RunFolderError, match=r"optimizer.lr was 0.001 and is now 0.5"):
        RunFolder(run, small_config(*EVERY_STEP, "optimizer.lr=0.5"))


def test_without_config_and_checkpoints_nothing_is_written_over(run: pathlib.Path) -> None:
    (run / "config.yaml").unlink()
    shutil.rmtree(run / "checkpoints")
    before = everything(run)
    with pytest.raises(RunFolderError, match=r"config.yaml is missing.*--restart"):
        train(CONFIG, run, quiet=True)
    assert everything(run) == before


@pytest.mark.parametrize("harm", ["flip", "delete", "no reward", "folder", "fifo"])
def test_damaged_metrics_cost_their_lines_alone(
    harm: str, run: pathlib.Path, finished: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.unlink()
    if harm == "flip":
        path.write_bytes("\n".join([lines[0], "\x00" + lines[1], *lines[2:], ""]).encode())
    elif harm == "no reward":
        path.write_text("\n".join([lines[0], '{"step": 2}', *lines[2:], ""]))
    elif harm == "folder":
        path.mkdir()
    elif harm == "fifo":
        os.mkfifo(path)
    with caplog.at_level(logging.WARNING, "groupwise"):
        train(CONFIG, run, quiet=True)
    kept = [line["step"] for line in read_metrics(run)]
    assert kept == ([1, 3, 4] if harm in ("flip", "no reward") else [])
    assert "curves have a gap" in caplog.text
    assert os.path.lexists(run / "metrics.jsonl.damaged") == (harm != "delete")
    assert digest(run / "model") == digest(finished / "model")


def test_with_all_checkpoints_damaged_history_stays(run: pathlib.Path) -> None:
    for folder in (run / "checkpoints").iterdir():
        (folder / "state.json").write_text("{}")
    before = everything(run)
    with pytest.raises(RunFolderError, match=r"all its checkpoints are damaged.*--restart"):
        train(CONFIG, run, quiet=True)
    assert everything(run) == before


def test_with_all_checkpoints_gone_history_stays(run: pathlib.Path) -> None:
    shutil.rmtree(run / "checkpoints")
    before = everything(run)
    with pytest.raises(RunFolderError, match=r"4 steps and there is no checkpoint.*--restart"):
        train(CONFIG, run, quiet=True)
    assert everything(run) == before


def test_starting_over_keeps_what_was_there(run: pathlib.Path, finished: pathlib.Path) -> None:
    for folder in (run / "checkpoints").iterdir():
        shutil.rmtree(folder / "model")
    before = everything(run)
    restart(run)
    train(CONFIG, run, quiet=True)
    assert everything(run / "before-restart-1") == before
    assert fingerprint(run) == fingerprint(finished)
    restart(run)
    assert sorted(path.name for path in run.iterdir()) == [
        ".lock",
        "before-restart-1",
        "before-restart-2",
    ]


def test_starting_over_leaves_other_folders_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    restart(tmp_path)
    restart(tmp_path / "nowhere")
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_a_damaged_newest_checkpoint_costs_no_new_one(
    run: pathlib.Path, finished: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With keep=1 the ones written after it stay, and the damaged one goes when it is passed."""
    root = run / "checkpoints"
    shutil.copytree(root / "step-000003", root / "step-000009")
    for path in root.iterdir():
        if path.name < "step-000003":
            shutil.rmtree(path)
    (root / "step-000004" / "state.json").write_text("{}")
    config = small_config(*EVERY_STEP, "checkpoint.keep=1")
    with caplog.at_level(logging.WARNING, "groupwise"):
        train(config, run, quiet=True)
    assert "step-000004 is damaged" in caplog.text and "using step-000003" in caplog.text
    names = sorted(path.name for path in root.iterdir())
    assert names == ["step-000004", "step-000009.damaged"]
    assert fingerprint(run) == fingerprint(finished)


def test_a_checkpoint_that_is_a_file_is_passed_over(
    run: pathlib.Path, finished: pathlib.Path
) -> None:
    target = run / "checkpoints" / "step-000004"
    shutil.rmtree(target)
    target.write_text("not a folder")
    train(CONFIG, run, quiet=True)
    assert target.is_dir() and fingerprint(run) == fingerprint(finished)


def test_half_saved_checkpoints_are_cleared_away(run: pathlib.Path) -> None:
    root = run / "checkpoints"
    shutil.copytree(root / "step-000004", root / "step-000005.new")
    assert newest_checkpoint(root) == root / "step-000004"
    assert not (root / "step-000005.new").exists()


def test_checkpoints_that_are_no_folder_are_refused_at_once(run: pathlib.Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("?")
    with pytest.raises(RunFolderError, match="checkpoints is not a folder"):
        train(CONFIG, run, quiet=True)


def test_two_signals_within_moments_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("groupwise.training.signals.time.monotonic", lambda: now[0])
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        now[0] += 0.05
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested == "SIGTERM"
        now[0] += 2
        with pytest.raises(Interrupted, match="stopped at once; what was saved is kept"):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_in_what_cannot_raise_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    class Strikes:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    with StopRequest() as stop:
        stop.at_once = True
        Strikes()
        assert stop.requested is not None
    assert "Traceback" not in capfd.readouterr().err


def test_what_a_signal_strikes_in_does_not_take_it_for_an_error_of_its_own() -> None:
    template = "{% for i in range(99999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
    with StopRequest() as stop, pytest.raises(Interrupted):
        stop.at_once = True
        signal.signal(signal.SIGALRM, stop._handle)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        render_chat(byte_tokenizer(template), [{"role": "user", "content": "hi"}])


def test_a_signal_before_training_begins_ends_the_run_at_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        raise AssertionError("loading went on")

    monkeypatch.setattr(api, "load_parts", slow)
    with pytest.raises(Interrupted, match="SIGTERM before training began"):
        train(CONFIG, tmp_path / "run", quiet=True)


def test_a_save_that_is_interrupted_leaves_nothing_half(
    run: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from groupwise.training import tensor_files

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    shutil.rmtree(run / "checkpoints" / "step-000004")
    monkeypatch.setattr(tensor_files, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, run, quiet=True)
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert "step-000003" in names and not any(name.endswith(".new") for name in names)


def full_disk(limit: int, folder: pathlib.Path) -> str:
    """Train in a forked process whose files may not grow beyond `limit` bytes; what it says."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        run_to_the_end, said = api.run_to_the_end, "no error"

        def limited(*args: Any) -> api.Result:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            return run_to_the_end(*args)

        api.run_to_the_end = limited
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            train(small_config("steps=1"), folder, quiet=True)
        except GroupwiseError as error:
            said = f"refused: {error}"
        except BaseException as error:
            said = f"traceback: {type(error)}: {error}"
        finally:
            os.write(writer, said.encode()[:4000])
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("limit", [100, 1000, 8000, 100_000, 1_000_000])
def test_a_full_disk_is_one_message_wherever_it_strikes(limit: int, tmp_path: pathlib.Path) -> None:
    said = full_disk(limit, tmp_path / "run")
    assert said.startswith("refused: could not write") and "free some space" in said
    assert "File too large" in said
    assert not [path for path in tmp_path.rglob("checkpoints/*") if path.suffix == ".new"]


def test_answers_that_cannot_be_written_are_one_message(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: pathlib.Path, data: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_module, "write_whole", full)
    refused = pytest.raises(RunFolderError, match=r"step-000001.*No space left.*free some space")
    with RunFolder(tmp_path / "run", CONFIG) as folder, refused:
        folder.log_rollouts(1, [])


def test_a_summary_that_is_none_does_not_count(run: pathlib.Path, finished: pathlib.Path) -> None:
    whole = {"status": "finished", "steps": 4, "before": {"reward": 1.0}, "after": {}, "more": 1}
    damaged = ({"steps": "many"}, {"after": []}, {"before": {"accuracy": "x"}}, {"status": None})
    for text in ("[]", "{}", "{", *(json.dumps({**whole, **change}) for change in damaged)):
        (run / "summary.json").write_text(text)
        assert read_summary(run) is None
    (run / "summary.json").write_text(json.dumps(whole))
    assert read_summary(run) == whole
