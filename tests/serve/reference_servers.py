"""Reference servers for tests: real HTTP, in a thread of this process or in one of their own."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from groupwise.policy.load import Policy
from groupwise.serve.app import build_app
from groupwise.serve.command import limits_of
from groupwise.serve.identity import identify
from groupwise.serve.worker import Worker

TOKEN = "a-token-for-the-tests"


@dataclass
class Running:
    url: str
    worker: Worker


@contextmanager
def in_thread(policy: Policy, *, tokens: int = 4096, places: int = 8) -> Iterator[Running]:
    """One at a time may compute: models of one process share the way that attention is routed."""
    worker = Worker(policy, tokens, places)
    app = build_app(worker, limits_of(policy, tokens), identify(policy), TOKEN)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield Running(f"http://127.0.0.1:{listening.getsockname()[1]}", worker)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextmanager
def in_process(model: str = "tiny", *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command itself on a free port; its address once it answers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "groupwise", "serve", "reference", model, "--port", "0",
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
