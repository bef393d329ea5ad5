"""Environments that another process can import: good ones, and every way to be a bad one.

The problem's column `fault` says which. It imports nothing heavy, as the worker does not.
"""

import asyncio
import contextlib
import ctypes
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from groupwise.environments.base import Reply, ToolSpec, Turn
from groupwise.errors import DataError
from groupwise.types import Problem

MADE = 0
"""Environments that this process has made."""


def user(text: str, **more: Any) -> Reply:
    return Reply(({"role": "user", "content": text},), **more)


class Lies:
    """Is no number, and takes its time to say so."""

    def __float__(self) -> float:
        time.sleep(3600)
        return 1.0


def hold_the_lock() -> None:
    """For hours in C, without giving up the interpreter lock: no thread of the process runs."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def leave_a_child_behind(*, session: bool = False) -> Reply:
    environment = {} if session else None
    child = subprocess.Popen(["sleep", "3600"], start_new_session=session, env=environment)
    return user(f"child {child.pid}")


def send_half_a_message() -> None:
    """Over the socket to the run, which is not its own: that many bytes will never come."""
    for number in range(3, 256):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as end:
            end.send(b"\0\1\0\0half")
    time.sleep(3600)


FAULTS = {
    "raises": lambda: 1 / 0,
    "exits": lambda: exit(3),
    "ends its process": lambda: os._exit(3),
    "crashes": lambda: ctypes.string_at(0),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "holds the lock": hold_the_lock,
    "hangs": lambda: threading.Event().wait(3600),
    "waits for ever": lambda: asyncio.sleep(3600),
    "sends half a message": send_half_a_message,
    "returns no reply": lambda: "hello",
    "returns what cannot be sent": lambda: user("x", info={"lock": threading.Lock()}),
    "lies about numbers": lambda: user("x", reward=Lies()),
    "leaves a child": leave_a_child_behind,
    "leaves a daemon": lambda: leave_a_child_behind(session=True),
    "cannot be fixed here": lambda: (_ for _ in ()).throw(DataError("no such row")),
}


class Faulty:
    """Two turns, then 1.0; in the second it does what the problem says."""

    tools: Sequence[ToolSpec] = ()

    def __init__(self, problem: Problem) -> None:
        global MADE
        MADE += 1
        self.fault, self.turns = problem.columns.get("fault"), 0
        if self.fault == "raises at once":
            raise RuntimeError("no docker here")

    async def reset(self, problem: Problem, seed: int) -> Reply:
        return Reply()

    async def step(self, turn: Turn) -> Reply:
        self.turns += 1
        if self.turns == 1:
            return user(f"process {os.getpid()} made {MADE} random {random.random()}")
        if self.fault in FAULTS:
            result: Any = FAULTS[self.fault]()
            return await result if asyncio.iscoroutine(result) else result
        return user("end", done=True)

    async def score(self) -> dict[str, float | None]:
        return {"won": 1.0}

    async def close(self) -> None:
        pass


class NeverClosed(Faulty):
    async def close(self) -> None:
        await asyncio.sleep(3600)


def alarm_tool(seconds: int) -> str:
    """Uses a signal, as tools with a time-out of their own do.

    Args:
        seconds: For how long.
    """
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(seconds)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    return "rang"
