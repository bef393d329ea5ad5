"""`groupwise serve vllm` for tests: vLLM's CPU build, from an environment of its own."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.request import urlopen

import pytest

from groupwise.recipe import write_config
from runs import small_config

ROOT = pathlib.Path(__file__).parents[3]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
TOKEN = "a-token-for-the-tests"
START_SECONDS = 900

needs_vllm = pytest.mark.skipif(
    not (PYTHON.parent.parent / ".ready").exists(), reason="no .venv-vllm: `make vllm` makes it"
)

# One thread, a small cache and no compilation: what is tested is not speed.
FLAGS = ("--enforce-eager", "--max-model-len", "160", "--kv-cache-memory-bytes", "67108864",
         "--max-num-seqs", "16")  # fmt: skip
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


@contextmanager
def serving(folder: pathlib.Path, *options: str) -> Iterator[Running]:
    """The embedded model, as soon as the process is there; its log is in `folder`."""
    port = free_port()
    command = [str(PYTHON), "-m", "groupwise", "serve", "vllm", "tiny", "--port", str(port),
               "--precision", "fp32", *options, *FLAGS]  # fmt: skip
    log = folder / f"vllm-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=ENVIRONMENT, start_new_session=True
        )
    running = Running(f"http://127.0.0.1:{port}", process, log)
    try:
        yield running
    finally:
        running.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


STEPS = 4


def recipe(folder: pathlib.Path, *more: str) -> pathlib.Path:
    path = folder / "recipe.yaml"
    # A penalty on length makes answers differ, so that every step has an update.
    settings = (f"steps={STEPS}", "checkpoint.every=0", "rollout.overlong_buffer=16",
                "engine.kind=vllm")  # fmt: skip
    write_config(small_config(*settings, *more), path)
    return path


def command(path: pathlib.Path, out: pathlib.Path, servers: Sequence[Running]) -> list[str]:
    urls = ", ".join(f"'{server.url}'" for server in servers)
    return [sys.executable, "-m", "groupwise", "train", str(path), "--out", str(out), "--quiet",
            f"engine.urls=[{urls}]", "engine.timeout=30"]  # fmt: skip


def start(words: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "GROUPWISE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: subprocess.Popen[str], code: int, seconds: float = 300) -> str:
    output, _ = process.communicate(timeout=seconds)
    assert process.returncode == code, output[-3000:]
    return output
