"""Ways to start several ranks, and ways for them to end.

Starting ranks is what costs time, so two runs are each started again and again: every start but the
last is ended in another way, the next one goes on by another launcher or with another kind of
ranks, and the end must be that of one process that nobody disturbed.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from groupwise.recipe import load_recipe
from groupwise.training.api import train
from groupwise.training.checkpoint import newest_checkpoint
from ranks import free_port, largest_gap, variables
from runs import SMALL, timeless_metrics

GROUPWISE = [sys.executable, "-m", "groupwise"]
STEPS = 16
BLOCKS = {
    name: [(k, v if not isinstance(v, bool) else str(v).lower()) for k, v in block.items()]
    for name, block in SMALL.items()
    if isinstance(block, dict) and name != "checkpoint"
} | {"eval": [("problems", 2), ("k", 1), ("every", 0)]}
SETTINGS = [
    *(f"{name}.{key}={value}" for name, block in BLOCKS.items() for key, value in block),
    *(f"steps={STEPS}", "device=cpu", "checkpoint.every=1", "optimizer.lr=1e-4"),
]


def words(folder: pathlib.Path, *overrides: str) -> list[str]:
    return ["train", "demo", *SETTINGS, *overrides, "--out", str(folder), "--quiet"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


def start(command: Sequence[str], **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=environment(**more), stderr=subprocess.PIPE, text=True)


def children(process: subprocess.Popen[str]) -> list[int]:
    path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def logged(folder: pathlib.Path) -> int:
    """Steps in the log: a line that is half written is none."""
    log = folder / "metrics.jsonl"
    return log.read_text().count("\n") if log.exists() else 0


@dataclass(frozen=True)
class End:
    """How a start ended: `saved` is the step of its last checkpoint."""

    code: int
    said: str
    seconds: float
    steps: int
    saved: int


def ended(
    folder: pathlib.Path,
    process: subprocess.Popen[str],
    end: Callable[[], object],
    over: Callable[[], object] | None = None,
) -> End:
    """`end` what `process` began, one step after the step at which it found the run.

    `over` waits for what outlives the process.
    """
    found = logged(folder)
    deadline = time.monotonic() + 150
    while logged(folder) <= found:
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            pytest.fail(f"it ended, or never began: {process.communicate(timeout=60)[1]}")
        time.sleep(0.05)
    end()
    began = time.monotonic()
    _, said = process.communicate(timeout=60)
    if over:
        over()
    newest = newest_checkpoint(folder / "checkpoints")
    saved = int(newest.name.removeprefix("step-")) if newest else 0
    return End(process.returncode, said, time.monotonic() - began, logged(folder), saved)


def gone(processes: Sequence[int]) -> None:
    deadline = time.monotonic() + 60
    while any(pathlib.Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < deadline, "the ranks went on"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The run in one process, never interrupted."""
    folder = tmp_path_factory.mktemp("one") / "run"
    train(load_recipe("demo", SETTINGS), folder, quiet=True)
    return folder


def same_run(one: pathlib.Path, folder: pathlib.Path) -> None:
    assert largest_gap(one, folder) < 1e-5
    expected, found = timeless_metrics(one), timeless_metrics(folder)
    assert [line["step"] for line in found] == list(range(1, STEPS + 1))
    for ours, theirs in zip(expected, found, strict=True):
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-3, abs=1e-5)


# The first run: --nproc and kill -9, --nproc and SIGTERM, torchrun.


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("first") / "run"


@pytest.fixture(scope="module")
def killed(first: pathlib.Path) -> End:
    process = start([*GROUPWISE, *words(first, "distributed.kind=ddp"), "--nproc", "2"])
    return ended(first, process, lambda: os.kill(children(process)[1], signal.SIGKILL))


@pytest.fixture(scope="module")
def stopped(first: pathlib.Path, killed: End) -> End:
    process = start([*GROUPWISE, *words(first, "distributed.kind=fsdp2"), "--nproc", "2"])
    return ended(first, process, lambda: process.send_signal(signal.SIGTERM))


@pytest.mark.cluster
def test_kill_9_of_a_rank_ends_the_run(killed: End) -> None:
    assert killed.code == 1 and killed.seconds < 40
    assert "rank 1 of 2 ended first, with SIGKILL" in killed.said
    assert "Traceback" not in killed.said
    assert killed.steps < STEPS, "it was over before it was killed"


@pytest.mark.cluster
def test_sigterm_to_the_launcher_stops_all_ranks_at_one_step_and_saves(
    killed: End, stopped: End
) -> None:
    assert stopped.code == 3, stopped.said
    assert "stopped by SIGTERM" in stopped.said
    assert killed.saved < stopped.steps == stopped.saved < STEPS


@pytest.mark.cluster
def test_torchrun_goes_on_and_the_end_is_that_of_one_process(
    one: pathlib.Path, first: pathlib.Path, stopped: End
) -> None:
    launcher = ["torch.distributed.run", "--nproc_per_node", "2", "--rdzv_backend", "c10d"]
    command = [sys.executable, "-m", *launcher, "--rdzv_endpoint", "localhost:0", "-m", "groupwise"]
    subprocess.run([*command, *words(first)], check=True, env=environment(), timeout=250)
    same_run(one, first)
    last = first / "checkpoints" / f"step-{STEPS:06d}"
    assert (last / "optimizer-00002-of-00002.safetensors").exists()


# The second run: SLURM and a rank that dies, --nproc and SIGINT, a launcher that dies, accelerate.


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("second") / "run"


@pytest.fixture(scope="module")
def left_alone(second: pathlib.Path) -> End:
    """Started as SLURM does, with nobody to watch."""
    names = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}
    command = [*GROUPWISE, *words(second, "distributed.kind=fsdp2", "distributed.timeout=30")]
    ranks, port = [], free_port()
    for rank in range(2):
        told = {names.get(name, name): value for name, value in variables(rank, 2, port).items()}
        ranks.append(start(command, SLURM_NODELIST="here", **told))
    return ended(second, ranks[0], ranks[1].kill, ranks[1].communicate)


@pytest.fixture(scope="module")
def interrupted(second: pathlib.Path, left_alone: End) -> End:
    process = start([*GROUPWISE, *words(second), "--nproc", "2"])
    return ended(second, process, lambda: process.send_signal(signal.SIGINT))


@pytest.fixture(scope="module")
def orphaned(second: pathlib.Path, interrupted: End) -> End:
    process, ranks = start([*GROUPWISE, *words(second), "--nproc", "2"]), list[int]()

    def kill() -> None:
        ranks.extend(children(process))
        process.kill()

    return ended(second, process, kill, lambda: gone(ranks))


@pytest.mark.cluster
def test_slurm_starts_ranks_and_one_notices_that_another_died(left_alone: End) -> None:
    assert left_alone.code == 1
    assert "another rank ended or cannot be reached" in left_alone.said
    assert "goes on from the last checkpoint" in left_alone.said
    assert left_alone.steps < STEPS, "it was over before it was killed"


@pytest.mark.cluster
def test_ctrl_c_at_the_launcher_stops_all_ranks_at_one_step_and_saves(
    left_alone: End, interrupted: End
) -> None:
    assert interrupted.code == 3, interrupted.said
    assert "stopped by SIGINT" in interrupted.said
    assert left_alone.saved < interrupted.steps == interrupted.saved < STEPS


@pytest.mark.cluster
def test_ranks_stop_and_save_when_the_launcher_is_killed(interrupted: End, orphaned: End) -> None:
    assert orphaned.code == -signal.SIGKILL
    assert interrupted.saved < orphaned.steps == orphaned.saved < STEPS


@pytest.mark.cluster
def test_accelerate_goes_on_and_the_end_is_that_of_one_process(
    one: pathlib.Path, second: pathlib.Path, orphaned: End
) -> None:
    launcher = ["accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1"]
    options = ["--multi_gpu", "--mixed_precision", "no", "--dynamo_backend", "no"]
    command = [sys.executable, "-m", *launcher, *options, "--main_process_port", "0"]
    command += ["-m", "groupwise", *words(second)]
    subprocess.run(command, check=True, env=environment(), timeout=250)
    same_run(one, second)


@pytest.mark.cluster
def test_what_a_user_can_fix_is_said_once_with_exit_code_2(tmp_path: pathlib.Path) -> None:
    command = [*GROUPWISE, *words(tmp_path / "run", "model=nowhere/to-be-found"), "--nproc", "2"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.count("cannot load model 'nowhere/to-be-found'") == 1
    assert "Traceback" not in done.stderr
