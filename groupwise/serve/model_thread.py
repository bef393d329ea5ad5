"""The thread that owns a model, and the bounded queue before it.

A device does one thing at a time, so there is one thread, and nothing else touches the model. What
is asked and what comes back is the server's business: it gives `answer`, which sees to some jobs.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class QueueFull(Exception):
    """So many questions wait already that another would wait too long."""


class Stopping(Exception):
    """The server is shutting down and takes no more questions."""


@dataclass
class Counts:
    """What /metrics shows. Written under the thread's lock."""

    requests: Counter[int] = field(default_factory=Counter)
    """By HTTP status."""
    questions: int = 0
    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Job(Generic[Asked, Answered]):
    question: Asked
    answer: "Future[Answered]"


def take_first(jobs: "deque[Job[Asked, Answered]]") -> "list[Job[Asked, Answered]]":
    return [jobs.popleft()]


class ModelThread(Generic[Asked, Answered]):
    """`submit` gives a future; `close` answers what waits and ends the thread.

    `take` chooses what is answered next, together, of what waits.
    """

    def __init__(
        self,
        name: str,
        places: int,
        answer: "Callable[[list[Job[Asked, Answered]]], None]",
        take: "Callable[[deque[Job[Asked, Answered]]], list[Job[Asked, Answered]]]" = take_first,
    ) -> None:
        self.places = places
        self.counts = Counts()
        self._take, self._answer = take, answer
        self._jobs: deque[Job[Asked, Answered]] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    @property
    def alive(self) -> bool:
        return self._open and self._thread.is_alive()

    def submit(self, question: Asked) -> "Future[Answered]":
        job = Job(question, Future())
        with self._changed:
            if not self._open:
                raise Stopping
            if len(self._jobs) >= self.places:
                raise QueueFull
            self._jobs.append(job)
            self._changed.notify()
        return job.answer

    def count_request(self, status: int) -> None:
        with self._changed:
            self.counts.requests[status] += 1

    def count_work(self, questions: int, tokens: int, seconds: float) -> None:
        with self._changed:
            self.counts.passes += 1
            self.counts.seconds += seconds
            self.counts.questions += questions
            self.counts.tokens += tokens

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._open and not self._jobs:
                    self._changed.wait()
                if not self._jobs:
                    return
                jobs = self._take(self._jobs)
            wanted = [job for job in jobs if job.answer.set_running_or_notify_cancel()]
            if wanted:
                self._answer(wanted)
