"""Servers that the trainer starts on its own machine, for `place: processes` and
`reference: process`.

Each is `groupwise serve rollouts`, `vllm` or `reference` on a free port of 127.0.0.1 with a
token that only the trainer knows. Its standard input is a pipe that the trainer never writes to:
when the trainer ends, however it ends, the pipe closes and the server leaves. It is a session of
its own, so that Ctrl-C reaches the trainer alone, which still needs its servers to stop in order.
"""

import importlib.util
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from groupwise.config import Config, Processes, VllmEngineSettings
from groupwise.errors import MissingExtraError, ModelError
from groupwise.policy.load import pick_device
from groupwise.remote.client import ServerUnavailable

LEAVE_SECONDS = 5.0
"""Time that a server has to end by itself."""
TOKEN_ENV = "GROUPWISE_TOKEN"
START_SECONDS, LEAST_REFERENCE_TOKENS = 600.0, 32768
"""Of a reference server: the time to load its model, and the least tokens of a forward pass."""


@dataclass
class LocalServer:
    """A server process on this machine. `start` starts it, or starts it again, and returns its
    address."""

    command: Sequence[str]
    environment: Mapping[str, str]
    timeout: float
    process: "subprocess.Popen[bytes] | None" = None
    closed: bool = False

    def start(self) -> str:
        self.stop()
        self.process = process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
            start_new_session=True,
        )
        if self.closed:
            self.stop()
            raise ModelError("the run is over, and its servers with it")
        return self._address(process)

    def close(self) -> None:
        """Stop it for good, also where another thread is starting it."""
        self.closed = True
        self.stop()

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
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            process.wait()
        process.stdout.close()

    def _address(self, process: "subprocess.Popen[bytes]") -> str:
        assert process.stdout is not None
        deadline, line = time.monotonic() + self.timeout, b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise ServerUnavailable(f"it did not start within {self.timeout:g} s")
                piece = os.read(process.stdout.fileno(), 512)
                if not piece:
                    code = process.wait()
                    raise ModelError(
                        f"a server on this machine ended with code {code} before it "
                        f"listened; what it said is above. Try it: {' '.join(self.command)}"
                    )
                line += piece
        return line.decode("utf-8", "replace").split()[0]


def rollout_workers(config: Config, place: Processes, token: str) -> list[LocalServer]:
    """As many as the recipe says, not started yet; they load what the trainer loads. Code that the
    recipe names is run in them, since the trainer, whose token they have, runs it too."""
    try:  # here rather than in a worker's log: what the extra `serve` brings is installed
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "uvicorn", "serve") from error
    device = pick_device(config.device)
    options = ["--device", device.type, "--precision", config.precision, "--trust-code"]
    options += ["--quantization", config.quantization] if config.quantization else []
    return _servers(["rollouts", config.model, *options], place, device, token)


def reference_server(config: Config, token: str) -> LocalServer:
    """`groupwise serve reference` of the run's model, not started yet; on the last of the GPUs."""
    device = pick_device(config.device)
    options = ["--device", device.type, "--precision", config.precision]
    options += ["--quantization", config.quantization] if config.quantization else []
    options += ["--tokens", str(max(config.batch.tokens_per_microbatch, LEAST_REFERENCE_TOKENS))]
    place = Processes(timeout=max(config.reference.timeout, START_SECONDS))
    words = ["reference", config.model, *options]
    return _servers(words, place, device, token, first=-1)[0]


def vllm_processes(
    config: Config, place: Processes, dtype: torch.dtype, token: str, longest: int
) -> list[LocalServer]:
    """`groupwise serve vllm` with the recipe's settings in the policy's precision, not started."""
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtraError("vllm", "vllm")
    engine = config.engine
    assert isinstance(engine, VllmEngineSettings)
    precision = {torch.float32: "fp32", torch.float16: "fp16"}.get(dtype, "bf16")
    options = ["--precision", precision, "--max-model-len", str(longest)]
    options += ["--lora-rank", str(config.adapter.rank)] if config.adapter else []
    options += ["--gpu-memory-utilization", str(engine.memory_share)]
    options += ["--max-num-seqs", str(engine.max_batch)]
    options += ["--enforce-eager"] if engine.eager else []
    return _servers(["vllm", config.model, *options], place, pick_device(config.device), token)


def _servers(
    words: Sequence[str], place: Processes, device: torch.device, token: str, first: int = 0
) -> list[LocalServer]:
    """`first`: which of the GPUs beside the trainer's the first of them gets."""
    command = [sys.executable, "-m", "groupwise", "serve", *words, "--port", "0", "--until-eof"]
    shared = {**os.environ, TOKEN_ENV: token}
    if device.type == "cpu":  # as many threads as here: the same sums in the same order
        shared["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    gpus = [str(i) for i in range(torch.cuda.device_count())] if device.type == "cuda" else []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named and gpus else gpus
    return [
        LocalServer(command, shared | gpu_for(first + index, visible), place.timeout)
        for index in range(place.count)
    ]


def gpu_for(index: int, visible: Sequence[str]) -> dict[str, str]:
    """The environment that gives worker `index` a GPU: the trainer's own only where all share it.

    gpu_for(0, ["0", "1", "2"]) == {"CUDA_VISIBLE_DEVICES": "1"}
    """
    if not visible:
        return {}
    others = visible[1:] or visible
    return {"CUDA_VISIBLE_DEVICES": others[index % len(others)]}
