"""Workers for tests: real HTTP, in a thread of this process or in a process of their own."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import uvicorn

from groupwise.config import AdapterSettings, Config
from groupwise.load import make_engine
from groupwise.policy.load import Policy, load_policy
from groupwise.rollout.workers.app import build_app, model_thread
from groupwise.rollout.workers.holder import Holder, Making
from groupwise.serve.model_thread import ModelThread

TOKEN = "a-token-for-the-tests"


def tiny(adapter: AdapterSettings | None = None) -> Policy:
    cpu = torch.device("cpu")
    return load_policy("tiny", cpu, torch.float32, layout="padded", adapter=adapter)


@dataclass
class Running:
    url: str
    holder: Holder
    thread: ModelThread[Any, Any]


@contextmanager
def in_thread(
    policy: Callable[[AdapterSettings | None], Policy] = tiny, *, places: int = 8
) -> Iterator[Running]:
    """Only for a trainer that waits for its answers: models of one process share the way that
    attention is routed."""
    making = Making(
        policy, lambda p, start: make_engine(p, Config(engine=start.engine, compile=start.compile))
    )
    holder, thread = Holder(making), model_thread(places)
    listening = socket.create_server(("127.0.0.1", 0))
    app = build_app(holder, thread, TOKEN)
    config = uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    serving.start()
    try:
        yield Running(f"http://127.0.0.1:{listening.getsockname()[1]}", holder, thread)
    finally:
        server.should_exit = True
        serving.join()
        listening.close()


@contextmanager
def in_process(model: str = "tiny", *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command itself on a free port; its address once it answers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "groupwise", "serve", "rollouts", model, "--port", "0",
         "--device", "cpu", *options],
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, "GROUPWISE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
