"""The thread that owns the model, and the bounded queue before it.

A device does one forward pass at a time, so there is one thread. Questions that wait are answered
together, up to a number of tokens, unless they ask for a pass of their own (`exact`).
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from groupwise.policy.load import Policy
from groupwise.policy.scoring import Scored, score_groups
from groupwise.serve.wire import Question
from groupwise.types import Group


class QueueFull(Exception):
    """So many questions wait already that another would wait too long."""


class Stopping(Exception):
    """The server is shutting down and takes no more questions."""


@dataclass
class Counts:
    """What /metrics shows. Written under the worker's lock."""

    requests: Counter[int] = field(default_factory=Counter)
    """By HTTP status."""
    questions: int = 0
    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Job:
    question: Question
    answer: "Future[Scored]"


class Worker:
    """`submit` gives a future of the log-probs; `close` answers what waits and ends the thread."""

    def __init__(self, policy: Policy, tokens_at_once: int, places: int) -> None:
        self.policy = policy
        self.tokens_at_once = tokens_at_once
        self.places = places
        self.counts = Counts()
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(target=self._run, name="reference model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    @property
    def alive(self) -> bool:
        return self._open and self._thread.is_alive()

    def submit(self, question: Question) -> "Future[Scored]":
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
                jobs = take_together(self._jobs, self.tokens_at_once)
            self._answer([job for job in jobs if job.answer.set_running_or_notify_cancel()])

    def _answer(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            return
        began = time.perf_counter()
        first = jobs[0].question
        groups: list[Group] = [group for job in jobs for group in job.question.groups]
        try:
            scored = score_groups(
                self.policy, groups, first.temperature, self.tokens_at_once, layout=first.layout
            )
        except (torch.OutOfMemoryError, MemoryError) as error:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if len(jobs) > 1:
                for job in jobs:
                    self._answer([job])
            else:
                jobs[0].answer.set_exception(MemoryError(str(error).splitlines()[0]))
            return
        except Exception as error:
            for job in jobs:
                job.answer.set_exception(error)
            return
        self._note(jobs, time.perf_counter() - began)
        before = 0
        for job in jobs:
            count = len(job.question.groups)
            own = range(before, before + count)
            job.answer.set_result({(g - before, a): s for (g, a), s in scored.items() if g in own})
            before += count

    def _note(self, jobs: Sequence[Job], seconds: float) -> None:
        with self._changed:
            self.counts.passes += 1
            self.counts.seconds += seconds
            self.counts.questions += len(jobs)
            self.counts.tokens += sum(job.question.tokens for job in jobs)


def take_together(jobs: deque[Job], tokens_at_once: int) -> list[Job]:
    """The first that waits, and those behind it that may share its forward pass."""
    first = jobs.popleft()
    taken, total = [first], first.question.tokens
    while jobs and not first.question.exact:
        following = jobs[0].question
        total += following.tokens
        if following.exact or total > tokens_at_once or _heat(following) != _heat(first.question):
            break
        taken.append(jobs.popleft())
    return taken


def _heat(question: Question) -> tuple[str, float, bool]:
    """What questions of one pass have in common."""
    spread = all(c.temperature is not None for group in question.groups for c in group.completions)
    return question.layout, question.temperature, spread
