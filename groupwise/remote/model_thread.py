"""The thread that owns a model, and the bounded queue before it.

A device does one thing at a time, so there is one thread, and nothing else touches the model.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

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


class ModelThread:
    """`submit` gives a future; `close` does what waits and ends the thread."""

    def __init__(self, name: str, places: int) -> None:
        self.places, self.waiting, self.alive = places, 0, True
        self.counts = WorkCounts()
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(1, name)

    def submit(self, work: Callable[[], Result]) -> "Future[Result]":
        def run() -> Result:
            self._wait(-1)
            try:
                return work()
            except (torch.OutOfMemoryError, MemoryError) as error:
                raise short_memory_error(error) from None

        if not self.alive:
            raise Stopping
        if self.waiting >= self.places:
            raise QueueFull
        self._wait(1)
        future = self._executor.submit(run)
        future.add_done_callback(lambda done: self._wait(-1) if done.cancelled() else None)
        return future

    def count_request(self, status: int) -> None:
        with self._lock:
            self.counts.requests[status] += 1

    def count_work(self, questions: int, tokens: int, seconds: float) -> None:
        """By the thread itself: one forward pass, or one call of the engine."""
        self.counts.passes += 1
        self.counts.seconds += seconds
        self.counts.questions += questions
        self.counts.tokens += tokens

    def close(self) -> None:
        self.alive = False
        self._executor.shutdown()

    def _wait(self, more: int) -> None:
        with self._lock:
            self.waiting += more


def short_memory_error(error: BaseException) -> MemoryError:
    """Its first line, with the device's cache emptied."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return MemoryError(str(error).partition("\n")[0])
