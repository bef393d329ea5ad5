"""Several reference servers: work goes to who is free, one that dies is survived."""

import asyncio
import logging
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from groupwise.batch import make_batch
from groupwise.config import ReferenceSettings
from groupwise.errors import ModelError
from groupwise.policy.packing import microbatches
from groupwise.policy.reference import Reference
from groupwise.remote import pool as pool_module
from groupwise.remote import reference_client as client_module
from groupwise.remote.client import ServerUnavailable
from groupwise.remote.fingerprint import model_fingerprint
from groupwise.remote.reference_client import ReferenceClient, RemoteReference, ServedModel
from groupwise.remote.reference_payload import LogprobsRequest
from small_models import random_groups, random_policy
from stubs import Stub, connect
from updates import Logprobs, policy_logprobs, reference_logprobs

POLICY = random_policy()
ONE_AT_A_TIME = threading.Lock()
GROUPS = random_groups(6, 4)


@dataclass
class Server(Stub):
    fingerprint: Any = field(default_factory=lambda: model_fingerprint(POLICY))

    async def model(self) -> ServedModel:
        self.reach()
        return ServedModel(fingerprint=self.fingerprint, tokens=4096)

    async def logprobs(self, question: LogprobsRequest, model: str) -> list[tuple[float, ...]]:
        self.asked += 1
        assert model == self.fingerprint.name
        await asyncio.sleep(self.pause)
        if self.dead:
            raise ServerUnavailable("connection reset")
        with ONE_AT_A_TIME:
            logprobs = policy_logprobs(
                POLICY, question.groups, question.temperature, 4096, question.layout
            )
        return [tuple(own) for own in logprobs.values()]


def balanced(monkeypatch: pytest.MonkeyPatch, *servers: Server) -> RemoteReference:
    connect(monkeypatch, client_module, ReferenceClient, *servers)
    urls = tuple(server.url for server in servers)
    return RemoteReference(ReferenceSettings(kind="server", urls=urls), POLICY, fresh=True)


def expected(tokens: int) -> Logprobs:
    return reference_logprobs(Reference(POLICY, ReferenceSettings()), GROUPS, 1.0, tokens)


def pieces(tokens: int) -> int:
    return len(list(microbatches(make_batch(GROUPS), POLICY.layout, tokens)))


def test_each_micro_batch_goes_to_who_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = Server("http://quick:1"), Server("http://slow:1", pause=0.3)
    reference = balanced(monkeypatch, quick, slow)
    assert reference_logprobs(reference, GROUPS, 1.0, 20) == expected(20)
    assert quick.asked + slow.asked == pieces(20) > 6
    assert quick.asked > slow.asked >= 1


def test_one_that_dies_is_survived_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    well, dying = Server("http://well:1", pause=0.02), Server("http://dying:1", dies_at=2)
    reference = balanced(monkeypatch, well, dying)
    with caplog.at_level(logging.WARNING, "groupwise"):
        for _ in range(3):
            assert reference_logprobs(reference, GROUPS, 1.0, 20) == expected(20)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1 and "http://dying:1 is gone (connection reset)" in warnings[0]
    assert dying.asked == 2 and well.asked == 3 * pieces(20) - 1


def test_one_that_comes_back_works_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_module, "RETRY_SECONDS", 0.0)
    well = Server("http://well:1", pause=0.02)
    back = Server("http://back:1", dies_at=1, returns=True)
    reference = balanced(monkeypatch, well, back)
    with caplog.at_level(logging.INFO, "groupwise"):
        reference_logprobs(reference, GROUPS, 1.0, 20)
        assert reference_logprobs(reference, GROUPS, 1.0, 20) == expected(20)
    assert back.asked > 1 and "http://back:1 is back" in caplog.text


def test_one_that_comes_back_as_another_model_stays_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "RETRY_SECONDS", 0.0)
    well = Server("http://well:1", pause=0.02)
    changed = Server("http://changed:1", dies_at=1)
    reference = balanced(monkeypatch, well, changed)
    reference_logprobs(reference, GROUPS, 1.0, 20)
    changed.fingerprint, changed.returns = model_fingerprint(random_policy(seed=1)), True
    assert reference_logprobs(reference, GROUPS, 1.0, 20) == expected(20)
    assert changed.asked == 1


def test_when_none_is_left_the_message_names_each_and_the_way_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Server("http://first:1", dies_at=1), Server("http://second:1", dies_at=3)
    reference = balanced(monkeypatch, first, second)
    with pytest.raises(ModelError) as raised:
        reference_logprobs(reference, GROUPS, 1.0, 12)
    text = str(raised.value)
    assert "http://first:1: connection refused" in text and "http://second:1" in text
    assert "run the same command again" in text


def test_a_question_that_kills_every_server_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cursed(Server):
        async def logprobs(self, question: LogprobsRequest, model: str) -> list[tuple[float, ...]]:
            self.asked += 1
            raise ServerUnavailable("it failed with status 500")

    stubs = Cursed("http://a:1"), Cursed("http://b:1")
    reference = balanced(monkeypatch, *stubs)
    with pytest.raises(ModelError, match="status 500"):
        reference_logprobs(reference, GROUPS, 1.0, 4096)
    assert sum(stub.asked for stub in stubs) < 10


def test_a_server_that_is_away_at_the_start_is_joined_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "RETRY_SECONDS", 0.0)
    late, well = Server("http://late:1", dies_at=0), Server("http://well:1", pause=0.02)
    reference = balanced(monkeypatch, late, well)
    assert reference_logprobs(reference, GROUPS, 1.0, 20) == expected(20) and late.asked == 0
    late.returns = True
    assert reference_logprobs(reference, GROUPS, 1.0, 20) == expected(20) and late.asked > 0
