"""Workers that the trainer starts on its own machine.

Each is `groupwise serve rollouts` on a free port of 127.0.0.1 with a token that only the trainer
knows. Its standard input is a pipe that the trainer never writes to: when the trainer ends, however
it ends, the pipe closes and the worker leaves. It is a session of its own, so that Ctrl-C reaches
the trainer alone, which still needs its workers to stop in order.
"""

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from groupwise.config import Config
from groupwise.errors import MissingExtraError, ModelError
from groupwise.remote.client import ServerUnavailable

LEAVE_SECONDS = 5.0
"""That a worker has to leave by itself."""
TOKEN_ENV = "GROUPWISE_TOKEN"


@dataclass
class LocalWorker:
    """`start` gives its address, and starts it anew where it ran before."""

    command: Sequence[str]
    environment: Mapping[str, str]
    timeout: float
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> str:
        self.stop()
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
            start_new_session=True,
        )
        return self._address()

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _address(self) -> str:
        assert self.process is not None and self.process.stdout is not None
        deadline, line = time.monotonic() + self.timeout, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise ServerUnavailable(f"it did not start within {self.timeout:g} s")
                piece = os.read(self.process.stdout.fileno(), 512)
                if not piece:
                    code = self.process.wait()
                    raise ModelError(
                        f"a rollout worker of this machine ended with code {code} before it "
                        f"listened; what it said is above. Try it: {' '.join(self.command)}"
                    )
                line += piece
        return line.decode("utf-8", "replace").split()[0]


def check_server_packages() -> None:
    """Here rather than in a worker's log: what the extra `serve` brings is installed."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "uvicorn", "serve") from error


def local_workers(config: Config, device: torch.device, token: str) -> list[LocalWorker]:
    """As many as the recipe says, not started yet; they load what the trainer loads."""
    command = [
        *(sys.executable, "-m", "groupwise", "serve", "rollouts", config.model),
        *("--port", "0", "--device", device.type, "--precision", config.precision, "--until-eof"),
        *(("--quantization", config.quantization) if config.quantization else ()),
    ]
    shared = {**os.environ, TOKEN_ENV: token}
    if device.type == "cpu":  # as many threads as here: the same sums in the same order
        shared["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    gpus = [str(i) for i in range(torch.cuda.device_count())] if device.type == "cuda" else []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named and gpus else gpus
    return [
        LocalWorker(command, shared | gpu_for(index, visible), config.workers.timeout)
        for index in range(config.workers.count)
    ]


def gpu_for(index: int, visible: Sequence[str]) -> dict[str, str]:
    """The environment that gives worker `index` a GPU: the trainer's own only where all share it.

    gpu_for(0, ["0", "1", "2"]) == {"CUDA_VISIBLE_DEVICES": "1"}
    """
    if not visible:
        return {}
    others = visible[1:] or visible
    return {"CUDA_VISIBLE_DEVICES": others[index % len(others)]}
