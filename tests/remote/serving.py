"""Servers for tests, over real HTTP: an app in a thread of this process, or the command itself."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from groupwise.remote.running import server_for

TOKEN = "a-token-for-the-tests"


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The app's address, as long as this is open."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = server_for(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextmanager
def serving_command(*words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`groupwise serve WORDS` on a free port; its address once it answers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "groupwise", "serve", *words, "--port", "0", "--device", "cpu"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GROUPWISE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
