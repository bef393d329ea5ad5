"""The model's thread: what it computes together, what it refuses, how it ends."""

import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from groupwise.batch import Batch
from groupwise.policy.logprobs import batch_logprobs
from groupwise.remote import reference_server as server_module
from groupwise.remote.model_loop import QueueFull, Stopping
from groupwise.remote.reference_payload import LogprobsRequest
from groupwise.remote.reference_server import LogprobsJob, ReferenceModel, take_together
from small_models import random_groups, random_policy
from updates import policy_logprobs


def question(
    seed: int = 0, *, exact: bool = False, temperature: float = 1.0, layout: str = "padded"
) -> LogprobsRequest:
    return LogprobsRequest(tuple(random_groups(2, 3, seed=seed)), temperature, layout, exact)


def queue(*questions: LogprobsRequest) -> deque[LogprobsJob]:
    return deque(LogprobsJob(q, Future()) for q in questions)


def test_what_waits_is_taken_together_up_to_the_token_budget() -> None:
    first, second, third = (question(seed) for seed in range(3))
    jobs = queue(first, second, third)
    taken = take_together(jobs, first.tokens + second.tokens)
    assert [job.request for job in taken] == [first, second] and len(jobs) == 1


@pytest.mark.parametrize(
    "other",
    [question(1, exact=True), question(1, temperature=0.5), question(1, layout="shared_prefix")],
)
def test_questions_that_differ_in_kind_do_not_share_a_pass(other: LogprobsRequest) -> None:
    first = question(0)
    assert len(take_together(queue(first, other), 10**6)) == 1
    assert len(take_together(queue(other, first), 10**6)) == 1
    assert len(take_together(queue(first, question(1)), 10**6)) == 2


def test_an_exact_question_has_its_own_pass() -> None:
    assert len(take_together(queue(question(0, exact=True), question(1, exact=True)), 10**6)) == 1


class Gate:
    """Stands before batch_logprobs and holds the worker until opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.entered = threading.Event(), threading.Event()
        self.passes: list[int] = []

        def held(policy: Any, batch: Batch, *args: Any, **kwargs: Any) -> Any:
            self.entered.set()
            assert self.opened.wait(20)
            self.passes.append(len(batch.groups))
            return batch_logprobs(policy, batch, *args, **kwargs)

        monkeypatch.setattr(server_module, "batch_logprobs", held)


def test_waiting_questions_share_one_pass_and_get_their_own_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, gate = random_policy(), Gate(monkeypatch)
    worker = ReferenceModel(policy, 4096, 8)
    asked = [question(seed) for seed in range(3)]
    answers = [worker.submit(asked[0])]
    assert gate.entered.wait(20)
    answers += [worker.submit(one) for one in asked[1:]]
    assert worker.thread.waiting == 2
    gate.opened.set()
    for one, answer in zip(asked, answers, strict=True):
        alone = policy_logprobs(policy, one.groups, 1.0, 4096, "padded")
        for own, logprobs in zip(answer.result(20), alone.values(), strict=True):
            assert own == pytest.approx(logprobs, abs=1e-5)
    worker.thread.close()
    assert gate.passes == [2, 4]
    assert (worker.thread.counts.passes, worker.thread.counts.questions) == (2, 3)
    assert worker.thread.counts.tokens == sum(one.tokens for one in asked)


def test_a_full_queue_refuses_and_a_closed_worker_first_answers_what_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch)
    worker = ReferenceModel(random_policy(), 4096, 2)
    answers = [worker.submit(question(0))]
    assert gate.entered.wait(20)
    answers += [worker.submit(question(seed)) for seed in (1, 2)]
    with pytest.raises(QueueFull):
        worker.submit(question(3))
    cancelled = answers.pop()
    assert cancelled.cancel()
    threading.Timer(0.1, gate.opened.set).start()
    worker.thread.close()
    assert all(answer.done() and answer.result() for answer in answers)
    assert gate.passes == [2, 2]  # the one that was cancelled was not computed
    with pytest.raises(Stopping):
        worker.submit(question(4))


def test_out_of_memory_is_told_to_the_one_that_does_not_fit_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def small(policy: Any, batch: Batch, *args: Any, **kwargs: Any) -> Any:
        if len(batch.groups) > 2:
            raise MemoryError("no room\nat all")
        return batch_logprobs(policy, batch, *args, **kwargs)

    monkeypatch.setattr(server_module, "batch_logprobs", small)
    worker = ReferenceModel(random_policy(), 4096, 8)
    large = replace(question(1), groups=tuple(random_groups(3, 2)))
    jobs = [LogprobsJob(q, Future()) for q in (question(0), large, question(2))]
    worker._compute(jobs)
    assert jobs[0].result.result() and jobs[2].result.result()
    with pytest.raises(MemoryError, match=r"^no room$"):
        jobs[1].result.result()
    worker.thread.close()


def test_a_pass_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = ReferenceModel(random_policy(), 4096, 8)
    monkeypatch.setattr(server_module, "batch_logprobs", lambda *a, **k: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        worker.submit(question(0)).result(20)
    monkeypatch.setattr(server_module, "batch_logprobs", batch_logprobs)
    assert worker.submit(question(0)).result(20) and worker.thread.alive
    worker.thread.close()
    assert not worker.thread.alive
