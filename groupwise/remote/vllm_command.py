"""`groupwise serve vllm`: `vllm serve` with the flags and variables that training needs.

This process becomes vLLM's: its log, its signals and its exit codes are vLLM's own. It is started
as the module behind `vllm serve`, because the program itself fails in vLLM's CPU package.
"""

import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_urlsafe
from urllib.request import urlopen

from groupwise.errors import MissingExtraError
from groupwise.policy.adapters import base_model_of, is_adapter_folder
from groupwise.policy.resolve import resolve_model

EXTENSION = "groupwise.remote.vllm_worker_extension.WeightLoading"
MIDDLEWARE = "groupwise.remote.vllm_middleware.WeightsMiddleware"
TOKEN_ENV = "GROUPWISE_TOKEN"
START_POLL_SECONDS, LEAVE_SECONDS = 0.5, 4.0
DTYPES = {"auto": "auto", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Serving:
    """Where, for whom, and what. `lora_rank` 0: all weights will be pushed, not an adapter."""

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    precision: str = "auto"
    lora_rank: int = 0
    more: tuple[str, ...] = ()
    """Further flags of `vllm serve`."""


def serve_arguments(serving: Serving, source: str) -> list[str]:
    """What follows `vllm serve`. A flag among `more` comes last, so it has the last word."""
    arguments = [
        *("--model", source),
        *("--host", serving.host, "--port", str(serving.port)),
        *("--dtype", DTYPES[serving.precision]),
        *("--middleware", MIDDLEWARE, "--worker-extension-cls", EXTENSION),
        # Log-probs of what is drawn from, and no sampling defaults of the model's own.
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
        "--enable-scale-out",  # the endpoint that takes and gives tokens
        "--disable-uvicorn-access-log",
    ]
    if serving.lora_rank:
        rank = str(lora_rank(serving.lora_rank))
        arguments += ["--enable-lora", "--max-loras", "1", "--max-lora-rank", rank]
    return [*arguments, *serving.more]


def serve_environment(token: str, before: Mapping[str, str]) -> dict[str, str]:
    return {"VLLM_NO_USAGE_STATS": "1", **before, TOKEN_ENV: token}


def serve_vllm(serving: Serving, token: str | None, *, until_eof: bool = False) -> None:
    """Does not return. The token is printed where it was made up here.

    `until_eof`: vLLM is a child of this process, which prints its address once it answers and ends
    with standard input, as a trainer that starts it needs it.
    """
    if importlib.util.find_spec("vllm") is None:
        raise MissingExtraError("vllm", "vllm")
    source = base_model(serving.model)
    if not serving.port:
        serving = replace(serving, port=_free_port(serving.host))
    address = f"http://{serving.host}:{serving.port}"
    if token is None:
        token = token_urlsafe(24)
        print(f"{address}\nexport {TOKEN_ENV}={token}", flush=True)
    program: Sequence[str] = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"]
    command = [*program, *serve_arguments(serving, source)]
    environment = serve_environment(token, os.environ)
    if until_eof:
        sys.exit(_until_eof(command, environment, address))
    os.execve(sys.executable, command, environment)


def _until_eof(command: Sequence[str], environment: Mapping[str, str], address: str) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment)
    threading.Thread(target=_end_with_stdin, args=(child,), daemon=True).start()
    while child.poll() is None:
        with suppress(OSError), urlopen(f"{address}/health", timeout=5):
            print(address, flush=True)
            return child.wait()
        time.sleep(START_POLL_SECONDS)
    return child.returncode


def _end_with_stdin(child: "subprocess.Popen[bytes]") -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    child.terminate()
    try:
        child.wait(LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listening:
        return listening.getsockname()[1]


def base_model(model: str) -> str:
    """What vLLM loads: the model, or the one that an adapter's folder is for."""
    source = resolve_model(model)
    return resolve_model(base_model_of(source)) if is_adapter_folder(source) else source


def lora_rank(rank: int) -> int:
    """vLLM knows powers of two, from 8 on."""
    return max(8, 1 << (rank - 1).bit_length())
