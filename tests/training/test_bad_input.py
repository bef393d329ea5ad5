"""Bad input gets one clear error, exit code 2, and nothing is lost."""

import io
import pathlib
import subprocess
import sys

import pytest
from rich.console import Console

from bad_rewards import fail, hang
from groupwise.errors import ConfigError, DataError, GroupwiseError, RewardError, RunFolderError
from groupwise.recipe import parse
from groupwise.report.terminal import before_after_table, metrics_table
from groupwise.rewards.base import Reward
from groupwise.training.api import train
from runs import SMALL, exit_code, fingerprint, small_config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch.promts=3", "did you mean 'prompts'"),
        ("stepz=3", "did you mean 'steps'"),
        ("task.digit=3", "did you mean 'digits'"),
        ("algorithm.clip_hi=0.3", "did you mean 'clip_high'"),
        ("steps=many", "steps: must be a whole number, not 'many'"),
        ("steps=0", "steps: input should be greater than or equal to 1"),
        ("batch.group_size=1", "batch.group_size: input should be greater than or equal to 2"),
        ("algorithm=ppo", "unknown preset 'ppo'; there are: grpo, dapo"),
        ("algorithm.kl_unbiased=true", "kl_weight above 0"),
        ("rewards=[{name: correct, weight: 0}]", "at least one reward needs a weight"),
        ("task.kind=chess", "chess"),
        (
            "place={urls: ['http://a:1'], token_env: AWS_SECRET_ACCESS_KEY}",
            "name begins with GROUPWISE_, since it is sent",
        ),
        (
            "reference={kind: server, urls: ['http://a:1'], token_env: HOME}",
            "reference.token_env: must be a variable whose name begins with GROUPWISE_",
        ),
        (
            "rewards=[{name: judge, options: {key_variable: AWS_SECRET_ACCESS_KEY}}]",
            "key_variable must be OPENAI_API_KEY or a variable whose name begins with GROUPWISE_",
        ),
        ("steps", "must look like key=value"),
        ("steps.more=3", "steps is a value, not a block"),
    ],
)
def test_config_errors_name_the_setting_and_the_fix(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(SMALL, [override])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("batch.minibatches=9",), "batch.minibatches is 9, but there are only batch.prompts=3"),
        (("rollout.overlong_buffer=99",), "lower it"),
    ],
)
def test_impossible_batch_plans_are_refused_before_anything_is_loaded(
    overrides: tuple[str, ...], message: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        train(small_config(*overrides), tmp_path / "run", quiet=True)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_prompts_that_are_too_long_are_left_out_and_counted(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data.jsonl"
    prompts = [f"{'long ' * 100 * (i % 3 == 0)}{i}" for i in range(150)]
    lines = [f'{{"prompt": "{prompt}", "answer": "1"}}' for prompt in prompts]
    path.write_text("\n".join(lines))
    config = small_config(f"task={{kind: jsonl, path: {path}}}", "steps=1")
    train(config, tmp_path / "run", quiet=True)
    assert "prompts are longer than 64 tokens and were left out" in caplog.text
    with pytest.raises(DataError, match="longer"):
        train(
            small_config(f"task={{kind: jsonl, path: {path}}}", "rollout.max_prompt_tokens=1"),
            tmp_path / "other",
            quiet=True,
        )


def test_a_missing_column_an_empty_file_and_a_missing_file(tmp_path: pathlib.Path) -> None:
    data = tmp_path / "data.jsonl"
    for text, message in (('{"question": "2+2?"}\n', "no column"), ("", "empty|no problems")):
        data.write_text(text)
        with pytest.raises(DataError, match=message):
            train(small_config(f"task={{kind: jsonl, path: {data}}}"), tmp_path / "r", quiet=True)
    with pytest.raises(DataError, match="nowhere"):
        train(small_config("task={kind: jsonl, path: nowhere.jsonl}"), tmp_path / "r", quiet=True)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fail, "KeyError"),
        (lambda completions, **_: [1.0], "1"),
        (lambda completion: float("nan"), "nan"),
        (hang, "did not return within 1 s"),
    ],
)
def test_a_bad_reward_stops_the_run_and_names_the_completion(
    function: object, message: str, tmp_path: pathlib.Path
) -> None:
    rewards = [Reward("mine", function)]  # pyright: ignore[reportArgumentType]
    config = small_config("reward_timeout=1")
    with pytest.raises(RewardError, match=message) as caught:
        train(config, tmp_path / "run", rewards=rewards, quiet=True)
    assert "mine" in str(caught.value)


def test_a_bad_reward_costs_only_its_scores_with_skip(tmp_path: pathlib.Path) -> None:
    def picky(completion: str) -> float:
        if "1" in completion:
            raise ValueError("no ones please")
        return 1.0

    config = small_config("on_reward_error=skip", "steps=1")
    result = train(config, tmp_path / "run", rewards=[picky], quiet=True)
    assert result.summary["status"] == "finished"


def test_a_folder_of_another_config_is_refused_and_untouched(tmp_path: pathlib.Path) -> None:
    train(small_config("steps=2"), tmp_path / "run", quiet=True)
    before = fingerprint(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"optimizer.lr was 0.001 and is now 0.5"):
        train(small_config("steps=2", "optimizer.lr=0.5"), tmp_path / "run", quiet=True)
    assert fingerprint(tmp_path / "run") == before


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(RunFolderError, match=r"not empty.*thesis.txt"):
        train(small_config(), tmp_path, quiet=True)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_a_folder_in_use_is_refused(tmp_path: pathlib.Path) -> None:
    from groupwise.tracking.run import RunFolder

    refused = pytest.raises(RunFolderError, match="in use by another run")
    with RunFolder(tmp_path / "run", small_config()), refused:
        train(small_config(), tmp_path / "run", quiet=True)


def test_a_model_that_is_not_there(tmp_path: pathlib.Path) -> None:
    for name in ("./nowhere", "nobody/nothing"):
        with pytest.raises(GroupwiseError, match=name.split("/")[-1]):
            train(small_config(f"model={name}"), tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "demo", "batch.promts=3"], "did you mean 'prompts'"),
        (["train", "dmeo"], "did you mean demo?"),
        (["train", "demo", "other"], "one recipe at a time"),
        (["eval", "./nowhere"], "nowhere"),
        (["sample", "tiny", "x" * 9999], "tokens, and the model reads 512"),
        (["train", "demo", "--nproc", "9" * 30], "--nproc takes auto or a number from 1 to 1024"),
        (["train", "demo", "--nproc", "9" * 5000], "--nproc takes auto or a number from 1 to 1024"),
        (["eval", "~nobody-here/model"], "the model folder '~nobody-here/model' does not exist"),
        (["eval", "tiny", "--task", "jsonl", "--data", "~nobody-here/x"], "does not exist"),
        (["reward", "fit", "~nobody-here/x", "--out", "m"], "neither a run folder nor a file"),
        (["train", "demo", "rewards=[~nobody-here/x.py:f]", "--quiet"], "there is no file"),
        (["import", "trl.json", "--out", "no/r.yaml"], "cannot write no/r.yaml: No such file"),
        (["import", "trl.json", "--out", "/dev/full"], "cannot write /dev/full: No space left"),
    ],
)
def test_the_command_line_exits_with_2_and_no_traceback(
    arguments: list[str],
    message: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("trl.json").write_text("{}")
    assert exit_code(arguments, monkeypatch) == 2
    errors = capfd.readouterr().err
    assert message in errors and "Traceback" not in errors


def test_so_does_its_process(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "groupwise", "train", "dmeo"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean demo?" in done.stderr and "Traceback" not in done.stderr


def test_a_full_disk_under_the_output_is_one_error() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "groupwise", "recipes"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write to") and "Traceback" not in done.stderr


def test_a_path_that_reads_like_markup_is_shown_as_it_is(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(small_config("steps=1"), tmp_path / "[/red]run [bold]x")
    shown = "".join(capsys.readouterr().out.split())
    assert "[/red]run[bold]x/model" in shown and "sample" in shown


def test_titles_and_names_of_rewards_are_no_markup() -> None:
    console = Console(file=io.StringIO(), width=200)
    console.print(metrics_table({"rewards/f[bold].py:f": 1.0}, "runs/[/red]x on jsonl"))
    both = {"rewards/f[bold].py:f": 1.0, "problems": 1.0}
    console.print(before_after_table(both, both, "tasks/[/red]x"))
    shown = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert shown.count("f[bold].py:f") == 2 and shown.count("[/red]x") == 2
