"""Ways to start several ranks, and ways for them to end."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from groupwise.train.checkpoint import newest_checkpoint
from ranks import free_port, largest_gap, variables
from runs import SMALL, timeless_metrics

GROUPWISE = [sys.executable, "-m", "groupwise"]
STEPS = 10


def words(folder: pathlib.Path, *overrides: str) -> list[str]:
    """`train` with the settings of `runs.SMALL`."""
    told = [f"{name}.{key}={value}" for name, block in BLOCKS.items() for key, value in block]
    flat = [f"steps={STEPS}", "device=cpu", "checkpoint.every=1", "optimizer.lr=1e-4", *overrides]
    return ["train", "demo", *told, *flat, "--out", str(folder), "--quiet"]


BLOCKS = {
    name: [(k, v if not isinstance(v, bool) else str(v).lower()) for k, v in block.items()]
    for name, block in SMALL.items()
    if isinstance(block, dict) and name != "checkpoint"
} | {"eval": [("problems", 4), ("k", 2), ("every", 0)]}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


def children(process: subprocess.Popen[str]) -> list[int]:
    path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def wait_for_steps(folder: pathlib.Path, count: int, process: subprocess.Popen[str]) -> None:
    """Until so many steps are logged."""
    end = time.monotonic() + 150
    log = folder / "metrics.jsonl"
    while not log.exists() or log.read_text().count("\n") < count:
        assert process.poll() is None and time.monotonic() < end, "it ended, or never began"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The run in one process, never interrupted."""
    folder = tmp_path_factory.mktemp("one") / "run"
    subprocess.run([*GROUPWISE, *words(folder)], check=True, env=environment(), timeout=200)
    return folder


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_kill_9_of_a_rank_ends_the_run_which_then_goes_on_exactly(
    kind: str, one: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    command = [*GROUPWISE, *words(folder, f"distributed.kind={kind}"), "--nproc", "2"]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_for_steps(folder, 1, process)
    os.kill(children(process)[1], signal.SIGKILL)
    began = time.monotonic()
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 40
    assert process.returncode == 1
    assert "rank 1 of 2 ended first, with SIGKILL" in said
    assert "Traceback" not in said
    assert len(timeless_metrics(folder)) < STEPS, "it was over before it was killed"
    subprocess.run(command, check=True, env=environment(), timeout=200)
    assert largest_gap(one, folder) < 1e-5
    assert [line["step"] for line in timeless_metrics(folder)] == list(range(1, STEPS + 1))


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_stops_all_ranks_at_one_step_and_saves(
    number: signal.Signals, one: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    command = [*GROUPWISE, *words(folder), "--nproc", "2"]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_for_steps(folder, 1, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3, said
    assert f"stopped by {number.name}" in said
    subprocess.run([*GROUPWISE, *words(folder)], check=True, env=environment(), timeout=200)
    assert largest_gap(one, folder) < 1e-5


@pytest.mark.cluster
def test_ranks_stop_and_save_when_the_launcher_is_killed(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "run"
    command = [*GROUPWISE, *words(folder, "steps=200"), "--nproc", "2"]
    process = subprocess.Popen(command, env=environment(), text=True)
    wait_for_steps(folder, 1, process)
    ranks = children(process)
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks):
        assert time.monotonic() < end, "the ranks went on"
        time.sleep(0.3)
    saved = newest_checkpoint(folder / "checkpoints")
    steps = len(timeless_metrics(folder))
    assert saved is not None and saved.name == f"step-{steps:06d}" and steps < 200


@pytest.mark.cluster
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "slurm"])
def test_other_launchers_start_the_same_run(
    launcher: str, one: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "run"
    arguments = ["-m", "groupwise", *words(folder)]
    if launcher == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
        command += ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    elif launcher == "accelerate":
        command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
        command += ["--multi_gpu", "--mixed_precision", "no", "--num_machines", "1"]
        command += ["--dynamo_backend", "no", "--main_process_port", "0"]
    else:
        return start_as_slurm_does(folder, one)
    subprocess.run([*command, *arguments], check=True, env=environment(), timeout=250)
    assert largest_gap(one, folder) < 1e-5
    assert (
        folder / "checkpoints" / f"step-{STEPS:06d}" / "optimizer-00002-of-00002.safetensors"
    ).exists()
    return None


def start_as_slurm_does(folder: pathlib.Path, one: pathlib.Path) -> None:
    names = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}
    ranks, port = [], free_port()
    for rank in range(2):
        told = {names.get(k, k): v for k, v in variables(rank, 2, port).items()}
        command = [*GROUPWISE, *words(folder)]
        ranks.append(subprocess.Popen(command, env=environment(SLURM_NODELIST="here", **told)))
    assert [rank.wait(250) for rank in ranks] == [0, 0]
    assert largest_gap(one, folder) < 1e-5


@pytest.mark.cluster
def test_without_a_launcher_to_watch_a_rank_notices_that_another_died(
    tmp_path: pathlib.Path,
) -> None:
    folder, port = tmp_path / "run", free_port()
    ranks = [
        subprocess.Popen(
            [*GROUPWISE, *words(folder, "steps=200", "distributed.timeout=30")],
            env=environment(**variables(rank, 2, port)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    wait_for_steps(folder, 1, ranks[0])
    ranks[1].kill()
    _, said = ranks[0].communicate(timeout=60)
    assert ranks[0].returncode == 1
    assert "another rank ended or cannot be reached" in said
    assert "goes on from the last checkpoint" in said


@pytest.mark.cluster
def test_what_a_user_can_fix_is_said_once_with_exit_code_2(tmp_path: pathlib.Path) -> None:
    command = [*GROUPWISE, *words(tmp_path / "run", "model=nowhere/to-be-found"), "--nproc", "2"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.count("cannot load model 'nowhere/to-be-found'") == 1
    assert "Traceback" not in done.stderr
