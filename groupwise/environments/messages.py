"""What a run and the process of an environment say to each other: one Ask, then its Answer.

They have a file of their own since the worker runs as a main module: pickle would know its classes
under another name than the parent does.
"""

import array
import asyncio
import fcntl
import os
import socket
import struct
import termios
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from groupwise.rewards.supervised import received

SENT_AT_ONCE = 65536
"""Bytes that an empty socket takes without waiting; it is empty when something is asked."""


@dataclass(frozen=True)
class Ask:
    """Ask("step", (turn,)). With "reset" an environment is made anew."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class MethodResult:
    """What the method returned, or `failed`: how the environment failed.

    `fixable` is the message of an error that the user can fix, which stops the run.
    """

    value: Any = None
    failed: str = ""
    fixable: str = ""


async def receive(connection: Connection) -> Any:
    """The next message; the event loop goes on until it comes. Raises EOFError or OSError."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(
        connection.fileno(), lambda: None if readable.done() else readable.set_result(None)
    )
    try:
        await readable
    finally:
        loop.remove_reader(connection.fileno())
    if _is_whole(connection):
        return received(connection)
    return await asyncio.to_thread(received, connection)  # it may never become whole


async def send(connection: Connection, message: Any) -> None:
    """The event loop goes on if the other side reads slowly, or not at all."""
    data = ForkingPickler.dumps(message)
    if len(data) <= SENT_AT_ONCE:
        connection.send_bytes(data)
    else:
        await asyncio.to_thread(connection.send_bytes, data)


def _is_whole(connection: Connection) -> bool:
    number = connection.fileno()
    there = array.array("i", [0])
    fcntl.ioctl(number, termios.FIONREAD, there)
    with socket.socket(fileno=os.dup(number)) as end:
        length = end.recv(4, socket.MSG_PEEK)
    return not length or (len(length) == 4 and there[0] - 4 >= struct.unpack("!i", length)[0])
