"""What a run is doing right now, for whoever shows it.

with listening(print):
    doing("sampling", 5, 8)         # sampling 5/8
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[str], object]

_listeners: list[Listener] = []


def doing(what: str, done: int | None = None, total: int | None = None) -> None:
    """From any thread."""
    text = what if done is None else f"{what} {done}/{total}"
    for listener in tuple(_listeners):
        listener(text)


class Progress:
    """Counts the tasks that are done, shows it, and notes when the last of them was."""

    def __init__(self, what: str) -> None:
        self.what, self.done, self.total = what, 0, 0
        self.began = self.last_done = time.perf_counter()

    def add(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        self.total += len(tasks)
        doing(self.what, self.done, self.total)
        for task in tasks:
            task.add_done_callback(self._count)

    def _count(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            self.last_done = time.perf_counter()
            self.done += 1
            doing(self.what, self.done, self.total)


def listen(listener: Listener) -> None:
    _listeners.append(listener)


def leave(listener: Listener) -> None:
    _listeners.remove(listener)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    listen(listener)
    try:
        yield
    finally:
        leave(listener)
