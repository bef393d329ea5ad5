"""`groupwise serve vllm` for tests: vLLM's CPU build, from an environment of its own."""

import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.request import urlopen

import pytest

from groupwise.config import Config
from runs import small_config

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
TOKEN = "a-token-for-the-tests"
START_SECONDS = 900

needs_vllm = pytest.mark.skipif(
    not (PYTHON.parent.parent / ".ready").exists(), reason="no .venv-vllm: `make vllm` makes it"
)

BATCH = 16
"""Answers that grow at the same time; others wait."""

# One thread, a small cache and no compilation: what is tested is not speed.
FLAGS = ("--enforce-eager", "--max-model-len", "160", "--kv-cache-memory-bytes", "67108864",
         "--max-num-seqs", str(BATCH))  # fmt: skip
ENVIRONMENT = {
    **os.environ, "GROUPWISE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "WARNING",
}  # fmt: skip


@dataclass
class Running:
    url: str
    process: subprocess.Popen[bytes]
    log: pathlib.Path

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(f"vLLM did not start:\n{self.log.read_text(errors='replace')[-4000:]}")

    def stop(self) -> None:
        """As Ctrl-C does; what it put into /dev/shm goes with it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """kill -9 of everything that it started, as when a machine goes away."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Servers:
    """Started where there are too few, kept as long as they live, stopped in the end."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.plain: list[Running] = []
        self.adapters: list[Running] = []

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *error: object) -> None:
        for running in (*self.plain, *self.adapters):
            running.process.terminate()  # all of them first: they leave at the same time
        for running in (*self.plain, *self.adapters):
            running.stop()

    def ready(self, count: int) -> list[Running]:
        """So many that answer and take whole weights."""
        self.begin(count)
        chosen = self.plain[:count]
        for running in chosen:
            running.wait()
        return chosen

    def begin(self, count: int) -> None:
        """See to it that so many are there or on their way."""
        self.plain = [running for running in self.plain if running.process.poll() is None]
        while len(self.plain) < count:
            self.plain.append(self._start())

    def begin_for_adapters(self) -> None:
        if not self.adapters:
            self.adapters.append(self._start("--lora-rank", "4"))

    def ready_for_adapters(self) -> Running:
        self.begin_for_adapters()
        (running,) = self.adapters
        running.wait()
        return running

    def _start(self, *options: str) -> Running:
        """With the embedded model; it answers later."""
        port = free_port()
        command = [str(PYTHON), "-m", "groupwise", "serve", "vllm", "tiny", "--port", str(port),
                   "--precision", "fp32", *options, *FLAGS]  # fmt: skip
        log = self.folder / f"vllm-{port}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env=ENVIRONMENT, start_new_session=True
            )
        return Running(f"http://127.0.0.1:{port}", process, log)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


STEPS = 4
COMBINATIONS = [
    ("vllm", "here", "in_turn", 1),
    ("vllm", "processes", "in_turn", 1),
    *(
        ("vllm", "servers", timing, ranks)
        for ranks in (1, 2)
        for timing in ("in_turn", "ahead", "in_flight")
    ),
]
"""Engine, place, timing, training processes: what test_vllm_runs.py runs."""


def config(*more: str, servers: Sequence[Running] = ()) -> Config:
    # A penalty on length makes answers differ, so that every step has an update.
    settings = (f"steps={STEPS}", "checkpoint.every=0", "rollout.overlong_buffer=16",
                "eval.problems=2", "engine.kind=vllm")  # fmt: skip
    if servers:
        urls = ", ".join(f"'{server.url}'" for server in servers)
        more = (f"place.urls=[{urls}]", "place.timeout=120", *more)
    return small_config(*settings, *more)
