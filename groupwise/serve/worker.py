"""What the thread of a reference server does: log-probs of the questions that wait.

Those are answered together, up to a number of tokens, unless they ask for a pass of their own
(`exact`).
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import torch

from groupwise.policy.load import Policy
from groupwise.serve.model_thread import Job, ModelThread
from groupwise.serve.scored import Scored, score_groups
from groupwise.serve.wire import Question
from groupwise.types import Group

ScoringJob = Job[Question, Scored]


class Worker:
    """Worker(policy, 32768, 64): `thread.submit(question)` gives a future of the log-probs."""

    def __init__(self, policy: Policy, tokens_at_once: int, places: int) -> None:
        self.policy = policy
        self.tokens_at_once = tokens_at_once
        self.thread: ModelThread[Question, Scored] = ModelThread(
            "reference model",
            places,
            self._answer,
            lambda jobs: take_together(jobs, tokens_at_once),
        )

    def submit(self, question: Question) -> "Future[Scored]":
        return self.thread.submit(question)

    def close(self) -> None:
        self.thread.close()

    def _answer(self, jobs: Sequence[ScoringJob]) -> None:
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
        tokens = sum(job.question.tokens for job in jobs)
        self.thread.count_work(len(jobs), tokens, time.perf_counter() - began)
        before = 0
        for job in jobs:
            count = len(job.question.groups)
            own = range(before, before + count)
            job.answer.set_result({(g - before, a): s for (g, a), s in scored.items() if g in own})
            before += count


def take_together(jobs: deque[ScoringJob], tokens_at_once: int) -> list[ScoringJob]:
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
