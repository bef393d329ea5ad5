"""Processes that end with us, however we end, and with all that they have started (reaper.py)."""

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from groupwise.rewards import reaper

WHOLE_SECONDS = 3
"""That the rest of a message may take once it has begun."""


MOST_BYTES = 2**30
"""Of a message: what is said to be longer is none."""


class Lifeline:
    """What a supervised process lives by: `command` starts one, `cut` ends it and all of its own.

    The command inherits the descriptor `watched`, which is closed here once it has.
    """

    def __init__(self) -> None:
        self.watched, self._kept = os.pipe()

    def command(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-I", "-S", reaper.__file__, str(self.watched), *words]

    def started(self) -> None:
        os.close(self.watched)

    def cut(self) -> None:
        if self._kept >= 0:
            os.close(self._kept)
        self._kept = -1


class SupervisedWorker:
    """`python -m module` with these inherited file descriptors as its arguments."""

    def __init__(self, module: str, inherited: Sequence[int]) -> None:
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._lifeline = lifeline = Lifeline()
        words = [sys.executable, "-P", "-m", module, *map(str, inherited)]
        try:
            self._process = subprocess.Popen(
                lifeline.command(words),
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(*inherited, lifeline.watched),
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for us, who then end it
            )
        finally:
            lifeline.started()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit code, negative for a signal; None while it still runs after so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def end(self) -> None:
        self._lifeline.cut()
        self._process.wait()


def bounded_connection(end: socket.socket) -> Connection:
    """Over which half a message is an OSError after `WHOLE_SECONDS`, and no wait without limit.

    Code that writes to descriptors which are not its own may have sent the half.
    """
    timeout = struct.pack("ll", WHOLE_SECONDS, 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        end.setsockopt(socket.SOL_SOCKET, option, timeout)
    return Connection(end.detach())


def received(connection: Connection) -> Any:
    """The next message. Raises EOFError or OSError; one without a number is no message of ours."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        deadline, length = time.monotonic() + WHOLE_SECONDS, end.recv(4, socket.MSG_PEEK)
        while 0 < len(length) < 4 and time.monotonic() < deadline:
            time.sleep(0.001)
            length = end.recv(4, socket.MSG_PEEK)
    if len(length) == 4 and not 0 <= struct.unpack("!i", length)[0] <= MOST_BYTES:
        raise OSError("a message of an impossible length")
    try:
        return connection.recv()
    except (BlockingIOError, pickle.UnpicklingError) as error:
        raise OSError("half a message") from error


def how_it_ended(code: int) -> str:
    """From the exit code of a process, negative for a signal."""
    if code < 0:
        return f"crashed its process ({signal.Signals(-code).name})"
    return f"ended its process (exit code {code})"
