"""The thread that owns a server's model, with an event loop in it and a bounded queue before it.

A device does one thing at a time, so there is one thread, and nothing else touches the model. An
engine's `sample` coroutines run in the loop side by side; other work has it to itself.
"""

import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, TypeVar

import torch

from groupwise.remote.event_loop import EventLoopThread

Result = TypeVar("Result")


class QueueFull(Exception):
    """So many requests wait already that another would wait too long."""


class Stopping(Exception):
    """The server is shutting down and takes no more requests."""


@dataclass
class WorkCounts:
    """What /metrics shows. `requests` are by HTTP status."""

    requests: Counter[int] = field(default_factory=Counter)
    questions: int = 0
    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0


class ModelLoop(EventLoopThread):
    """`submit` gives a future; `close` does what waits and ends the thread."""

    def __init__(self, name: str, queue_size: int) -> None:
        super().__init__(name)
        self.queue_size, self.waiting, self.alive = queue_size, 0, True
        self.counts = WorkCounts()
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], Result | Awaitable[Result]]) -> "Future[Result]":
        """`queue_size` of them may wait; a coroutine that runs does not wait any more."""
        begun = False

        async def run() -> Result:
            nonlocal begun
            begun = True
            self._wait(-1)
            try:
                result: Any = work()
                return await result if isawaitable(result) else result
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise short_memory_error(error) from None

        if not self.alive:
            raise Stopping
        if self.waiting >= self.queue_size:
            raise QueueFull
        self._wait(1)
        future = self.start(run())
        future.add_done_callback(lambda _: None if begun else self._wait(-1))
        return future

    def count_request(self, status: int) -> None:
        with self._lock:
            self.counts.requests[status] += 1

    def count_work(self, questions: int, tokens: int, seconds: float) -> None:
        """By the thread itself: one forward pass, or one request of an engine."""
        self.counts.passes += 1
        self.counts.seconds += seconds
        self.counts.questions += questions
        self.counts.tokens += tokens

    def close(self) -> None:
        self.alive = False
        super().close()

    def _wait(self, more: int) -> None:
        with self._lock:
            self.waiting += more


def short_memory_error(error: BaseException) -> MemoryError:
    """Its first line, with the device's cache emptied."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return MemoryError(str(error).partition("\n")[0])
