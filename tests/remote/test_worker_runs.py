"""Whole runs whose answers are sampled in workers: what is the same, and what is survived."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from clients import wait
from groupwise.config import Config
from groupwise.errors import ModelError
from groupwise.recipe import write_config
from groupwise.remote.worker_client import WorkerClient
from groupwise.tracking.run import read_metrics, read_rollouts
from groupwise.training.api import train
from held import Held, wait_until
from rollout_workers import TOKEN, in_process, in_thread
from runs import fingerprint, small_config
from stubs import requests_until_death

DOCS = pathlib.Path(__file__).parents[2] / "docs" / "workers.md"
SHOWN = re.findall(r"^(groupwise serve rollouts.*)$", DOCS.read_text(), re.M)
STEPS = ("steps=3", "eval.every=2")


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPWISE_TOKEN", TOKEN)


@pytest.fixture(scope="module")
def in_process_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("local") / "run"
    train(small_config(*STEPS), folder, quiet=True)
    return fingerprint(folder)


def test_a_run_without_staleness_is_the_one_in_process_also_after_its_worker_died(
    in_process_run: dict[str, Any], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics, weights, evaluations and stored answers, bit for bit."""

    def config(url: str) -> Config:
        return small_config(*STEPS, f"place.urls=[{url}]")

    with in_thread() as worker, monkeypatch.context() as context:
        requests_until_death(context, WorkerClient, 9)
        with pytest.raises(ModelError, match="run the same command again"):
            train(config(worker.url), tmp_path / "run", quiet=True)
    assert 0 < len(read_metrics(tmp_path / "run")) < 3
    with in_thread() as worker:
        train(config(worker.url), tmp_path / "run", quiet=True)
    assert fingerprint(tmp_path / "run") == in_process_run


def train_command(
    config: Config, folder: pathlib.Path, held: Held | None = None
) -> subprocess.Popen[str]:
    recipe = folder.parent / f"{folder.name}.yaml"
    write_config(config, recipe)
    words = ["train", str(recipe), *(held.words if held else ()), "--out", str(folder), "--quiet"]
    return subprocess.Popen(
        [sys.executable, "-m", "groupwise", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def children(parent: int) -> list[int]:
    """Processes that sample for a trainer."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            words = (path.parent / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if int(fields[1]) == parent and "rollouts" in words and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def is_running(number: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


linux = pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="reads /proc")
STALE = ("steps=10", "place.count=2", "timing=ahead", "checkpoint.every=3", "eval.every=4")


@pytest.fixture(scope="module")
def stale_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two workers of this machine, one step ahead."""
    folder = tmp_path_factory.mktemp("stale") / "run"
    train(small_config(*STALE), folder, quiet=True)
    return fingerprint(folder)


@pytest.mark.cluster
def test_two_workers_one_step_ahead(stale_run: dict[str, Any]) -> None:
    assert [line["staleness_max"] for line in stale_run["metrics"]] == [0.0] + [1.0] * 9
    versions = [
        {c["version"] for group in stale_run["rollouts"][name] for c in group["completions"]}
        for name in sorted(stale_run["rollouts"])
    ]
    assert versions == [{0}, {0}, *({step} for step in range(1, 9))]


@linux
@pytest.mark.cluster
def test_a_worker_the_trainer_and_again_the_trainer_are_ended_and_it_changes_nothing(
    stale_run: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    """kill -9 of a worker, which is started again; kill -9 of the trainer, which ends its workers;
    SIGTERM, which keeps what was sampled ahead. Then the run goes on to its end."""
    folder = tmp_path / "run"
    held = Held(folder, 2, 5, 7)
    run = train_command(small_config(*STALE), folder, held)
    held.wait(2, run)
    killed = children(run.pid)[0]
    os.kill(killed, signal.SIGKILL)
    held.go_on(2)
    held.wait(5, run)  # by then it was asked for answers and given weights, and is missed
    wait_until(lambda: "is back" in (folder / "log.txt").read_text(), 240)
    workers = children(run.pid)
    os.kill(run.pid, signal.SIGKILL)
    said, _ = run.communicate(timeout=400)
    assert run.returncode == -signal.SIGKILL, said
    assert "is gone" in said and "is back" in said
    assert len(workers) == 2 and killed not in workers
    assert wait_until(lambda: not any(is_running(worker) for worker in workers), 20)

    held.go_on(5)
    again = train_command(small_config(*STALE), folder, held)
    held.wait(7, again)
    again.send_signal(signal.SIGTERM)
    held.go_on(7)
    said, _ = again.communicate(timeout=400)
    assert again.returncode == 3 and "resuming" in said, said
    assert not children(again.pid) and len(read_metrics(folder)) == 7

    train(small_config(*STALE), folder, quiet=True)
    assert fingerprint(folder) == stale_run


@linux
@pytest.mark.cluster
def test_in_flight_a_trainer_that_is_killed_loses_no_problem_and_draws_none_twice(
    tmp_path: pathlib.Path,
) -> None:
    folder = tmp_path / "run"
    flying = ("steps=6", "place.count=1", "timing=in_flight", "checkpoint.every=2", "eval.every=3")
    config = small_config(*flying)
    held = Held(folder, 3)
    run = train_command(config, folder, held)
    held.wait(3, run)
    run.kill()
    said, _ = run.communicate(timeout=400)
    assert run.returncode == -signal.SIGKILL, said
    train(config, folder, quiet=True)
    lines = read_metrics(folder)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if "eval/accuracy" in line] == [3, 6]
    files = sorted((folder / "rollouts").glob("*.gz"))
    learned = [group["problem"]["id"] for path in files for group in read_rollouts(path)]
    state = json.loads((folder / "checkpoints" / "step-000006" / "state.json").read_text())
    waiting = [*state["open"], *(position for position, _ in state["complete"])]
    assert len(set(learned)) == len(learned) == 18
    assert len(set(waiting)) == len(waiting) == state["cursor"] - 18


@pytest.mark.cluster
def test_two_workers_without_staleness_sample_what_one_process_does(
    in_process_run: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    """Each has half of the batch, so log-probs may differ in their last digits, and in nothing
    else: the weights do not depend on them."""
    overrides = (*STEPS, "place.count=2")
    train(small_config(*overrides), tmp_path / "run", quiet=True)
    found = fingerprint(tmp_path / "run")
    assert found["model"] == in_process_run["model"]
    assert found["after"] == in_process_run["after"]
    for name, groups in in_process_run["rollouts"].items():
        for ours, theirs in zip(groups, found["rollouts"][name], strict=True):
            for a, b in zip(ours["completions"], theirs["completions"], strict=True):
                assert a["tokens"] == b["tokens"]
                assert a["logprobs"] == pytest.approx(b["logprobs"], abs=1e-4)


OWN = """
import groupwise
from groupwise.rollout.native.engine import NativeEngine

@groupwise.engine
class Mine(NativeEngine):
    def __init__(self, policy, config):
        super().__init__(policy, config.engine.max_batch)
"""


@pytest.mark.cluster
def test_an_engine_of_ones_own_samples_in_processes_too(
    in_process_run: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "own_engine.py"
    file.write_text(OWN)
    own = small_config(*STEPS, f"engine.kind={file}:Mine", "place.count=1")
    train(own, tmp_path / "run", quiet=True)
    assert fingerprint(tmp_path / "run")["model"] == in_process_run["model"]


@pytest.mark.cluster
def test_a_wrong_token_and_a_worker_elsewhere_that_dies_are_exit_code_2_and_nothing_is_lost(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    held = Held(folder, 2)
    with in_process() as (url, process):
        config = small_config("steps=4", f"place.urls=[{url}]")
        with monkeypatch.context() as context:
            context.setenv("GROUPWISE_TOKEN", "wrong" * 5)
            refused = train_command(config, tmp_path / "refused")
        run = train_command(config, folder, held)
        held.wait(2, run)
        refused.wait(200)
        process.kill()
        held.go_on(2)
        said, _ = run.communicate(timeout=400)
    assert run.returncode == 2 and "no rollout worker is left" in said and "Traceback" not in said
    assert len(read_metrics(folder)) == 2
    assert (folder / "checkpoints" / "step-000002").exists()
    said, _ = refused.communicate(timeout=400)
    assert refused.returncode == 2 and "refuses the token" in said and "Traceback" not in said


@pytest.mark.cluster
def test_a_run_with_staleness_still_learns(tmp_path: pathlib.Path) -> None:
    """The demo's model and task, one step ahead and published every second step."""
    config = small_config(
        "steps=40",
        "task.train_size=512",
        "task.test_size=100",
        "batch.prompts=8",
        "batch.group_size=8",
        "rollout.max_completion_tokens=48",
        "optimizer.lr=5e-5",
        "eval.problems=100",
        "eval.k=1",
        "checkpoint.every=0",
        "tracking.rollouts=40",
        "place.count=1",
        "timing.publish_every=2",
        "timing.max_staleness=2",
    )
    result = train(config, tmp_path / "run", quiet=True)
    before, after = result.summary["before"]["accuracy"], result.summary["after"]["accuracy"]
    lines = read_metrics(tmp_path / "run")
    assert max(line["staleness_max"] for line in lines) == 2
    assert after > before + 0.3, (before, after)
    assert len(read_rollouts(tmp_path / "run" / "rollouts" / "step-000040.jsonl.gz")) == 8


@pytest.mark.cluster
def test_commands_shown_print_an_address_and_a_token_that_work() -> None:
    bare = {k: v for k, v in os.environ.items() if k != "GROUPWISE_TOKEN"}
    processes: list[subprocess.Popen[str]] = []
    try:
        for line in SHOWN:
            words = [word for word in line.split() if word != "0.0.0.0" and word != "--host"]
            command = [sys.executable, "-m", *words, "--port", "0"]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=bare))
        assert processes
        for process in processes:
            assert process.stdout is not None
            url, printed = (process.stdout.readline().strip() for _ in range(2))
            found = re.fullmatch(r"export GROUPWISE_TOKEN=([\w-]{32})", printed)
            assert found
            address = WorkerClient(url, found[1], "GROUPWISE_TOKEN", 30)
            assert b'"version":null' in wait(address.request("GET", "/model"))
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
    finally:
        for process in processes:
            process.kill()
