"""What a run and the process of an environment say to each other: one Ask, then its Answer.

They have a file of their own since the worker runs as a main module: pickle would know its classes
under another name than the parent does.
"""

import asyncio
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from groupwise.rewards.supervised import received


@dataclass(frozen=True)
class Ask:
    """Ask("step", (turn,)). With "reset" an environment is made anew."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Answer:
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
    return received(connection)
