"""`groupwise train --launch ray`, on a cluster of this machine with two workers."""

import importlib.util
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from groupwise.cli.main import app
from groupwise.config import Config
from groupwise.errors import ConfigError, MissingExtraError
from groupwise.recipe import parse
from groupwise.training.api import train
from groupwise.training.ray_job import check_room, resources, train_on_ray
from held import Held
from runs import SMALL, timeless_metrics

NEEDS_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no ray")
STEPS = 6
RUN: dict[str, Any] = {
    **SMALL,
    "steps": STEPS,
    "checkpoint": {"every": 2},
    "ray": {"workers": 2, "cpus": 1},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator["Cluster"]:
    """What `ray start --head` makes, with two CPUs and a token of its own."""
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = ["start", "--head", "--block", "--num-cpus=2", "--num-gpus=0", f"--port={port}"]
    head = subprocess.Popen(
        [str(pathlib.Path(sys.executable).parent / "ray"), *command,
         "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    cluster = Cluster(head, f"127.0.0.1:{port}", environment)
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.end()


@dataclass(frozen=True)
class Cluster:
    head: subprocess.Popen[bytes]
    address: str
    environment: dict[str, str]

    def wait(self) -> None:
        """Until it takes connections and has a node."""
        host, _, port = self.address.partition(":")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.head.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0 and self.processes("raylet"):
                    return
            time.sleep(0.2)
        pytest.fail("ray start --head does not come up")

    def end(self) -> None:
        """At once: to leave by itself takes it half a minute, and nothing of it is needed."""
        for process in [self.head.pid, *self.processes("")]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.head.wait()

    def start(self, tree: dict[str, Any], out: pathlib.Path, *words: str) -> subprocess.Popen[str]:
        recipe = out.with_suffix(".yaml")
        recipe.write_text(yaml.safe_dump(tree))
        command = ["train", str(recipe), *words, "--out", str(out), "--launch", "ray"]
        return subprocess.Popen(
            [sys.executable, "-m", "groupwise", *command],
            env={**self.environment, "RAY_ADDRESS": self.address},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def workers(self) -> list[int]:
        """The processes in which ranks run."""
        return self.processes("RayTrainWorker")

    def processes(self, name: str) -> list[int]:
        """Those of the cluster whose command says so."""
        import psutil

        if self.head.poll() is not None:
            return []
        found = []
        for process in psutil.Process(self.head.pid).children(recursive=True):
            with suppress(psutil.Error):
                if any(name in word for word in process.cmdline()):
                    found.append(process.pid)
        return sorted(found)


def finish(job: subprocess.Popen[str], seconds: float = 400) -> tuple[int, str]:
    try:
        output, _ = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        output, _ = job.communicate()
    return job.returncode, output


@NEEDS_RAY
@pytest.mark.cluster
def test_two_workers_train_what_one_process_trains_also_after_one_was_killed(
    cluster: Cluster, tmp_path: pathlib.Path
) -> None:
    """Ray starts both anew, and they go on from the checkpoint."""
    out = tmp_path / "killed"
    held = Held(out, 3)
    job = cluster.start(RUN, out, *held.words)
    held.wait(3, job)
    pids = cluster.workers()
    assert len(pids) == 2
    os.kill(pids[1], signal.SIGKILL)
    held.go_on(3)
    code, output = finish(job)
    assert code == 0, output[-3000:]
    assert "finished, test accuracy" in output
    assert "resuming" in output, output[-3000:]
    alone = train(parse(RUN), tmp_path / "alone", quiet=True).folder
    mine, theirs = (load_file(run / "model" / "model.safetensors") for run in (alone, out))
    assert mine.keys() == theirs.keys()
    for name, weight in mine.items():
        assert (weight - theirs[name]).abs().max() < 1e-5, name
    assert json.loads((out / "summary.json").read_text())["steps"] == STEPS
    assert [line["step"] for line in timeless_metrics(out)] == list(range(1, STEPS + 1))
    for ours, found in zip(timeless_metrics(alone), timeless_metrics(out), strict=True):
        assert found == pytest.approx(ours, rel=1e-3, abs=1e-5)


@NEEDS_RAY
def test_a_cluster_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    tree = {**RUN, "ray": {"address": "127.0.0.1:1"}}
    with pytest.raises(ConfigError, match=r"no Ray cluster at '127.0.0.1:1'.*ray start --head"):
        train_on_ray(parse(tree), tmp_path / "nowhere")


@NEEDS_RAY
@pytest.mark.cluster
def test_what_a_user_can_fix_is_said_once_and_not_tried_again(
    cluster: Cluster, tmp_path: pathlib.Path
) -> None:
    task = {"kind": "jsonl", "path": "no_such_file.jsonl"}
    tree = {**RUN, "task": task, "ray": {"workers": 1, "cpus": 1}}
    code, output = finish(cluster.start(tree, tmp_path / "wrong"))
    assert code == 2, output[-3000:]
    assert "error: " in output and "no_such_file.jsonl" in output
    assert not (tmp_path / "wrong" / "summary.json").exists()


def test_workers_get_what_the_recipe_says() -> None:
    cluster = {"CPU": 8.0, "GPU": 4.0}
    assert resources(parse({"ray": {"cpus": 2}}), cluster) == {"CPU": 2.0, "GPU": 1.0}
    assert resources(parse({"device": "cpu"}), cluster) == {"CPU": 1.0}
    assert resources(parse({}), {"CPU": 8.0}) == {"CPU": 1.0}
    assert resources(parse({"ray": {"gpus": 0.5}}), cluster) == {"CPU": 1.0, "GPU": 0.5}


def test_a_cluster_that_is_too_small_is_not_waited_for() -> None:
    check_room(4, {"CPU": 2.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 4.0})
    with pytest.raises(ConfigError, match=r"5 workers with 1 GPU each need 5.* has 4.*ray\.gpus"):
        check_room(5, {"GPU": 1.0}, {"CPU": 8.0, "GPU": 4.0})
    with pytest.raises(ConfigError, match="has 0"):
        check_room(1, {"GPU": 1.0}, {"CPU": 8.0})


def test_without_ray_the_install_command_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "ray" else found(name, *a)
    )
    with pytest.raises(MissingExtraError, match=r"pip install 'groupwise\[ray\]'"):
        train_on_ray(Config(), tmp_path / "run")


def test_only_ray_can_be_launched() -> None:
    result = CliRunner().invoke(app, ["train", "--launch", "slurm"])
    assert isinstance(result.exception, ConfigError) and "takes ray" in str(result.exception)
