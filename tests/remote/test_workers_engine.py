"""Several workers as one engine: who does what, and what happens when one dies."""

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from groupwise.config import Config
from groupwise.errors import EngineGoneError, ModelError
from groupwise.remote import pool as pool_module
from groupwise.remote import worker_client as client_module
from groupwise.remote.client import ServerUnavailable
from groupwise.remote.fingerprint import WorkerFingerprint, worker_fingerprint
from groupwise.remote.payload import Weights
from groupwise.remote.worker_client import WorkersEngine
from groupwise.remote.worker_payload import Answers, GenerateRequest, RunSettings
from groupwise.rollout.native.engine import NativeEngine
from groupwise.types import Request, Sampling
from small_models import random_policy

POLICY = random_policy()
ONE_AT_A_TIME = threading.Lock()
REQUESTS = [Request((5 + n, 6), (n, 100 + n)) for n in range(6)]


@dataclass
class Stub:
    """A worker without HTTP, which dies at its n-th order and may come back as a new process."""

    url: str
    dies_at: int | None = None
    returns: bool = True
    pause: float = 0.0
    orders: int = 0
    begun: int = 0
    versions: list[int] = field(default_factory=list)
    has: int | None = None

    @property
    def dead(self) -> bool:
        return self.dies_at is not None and self.orders >= self.dies_at

    def begin(self, start: RunSettings) -> WorkerFingerprint:
        if self.dead and not self.returns:
            raise ServerUnavailable("connection refused")
        if self.dead:
            self.dies_at, self.has = None, None
        self.begun += 1
        return worker_fingerprint(POLICY)

    def send_weights(self, weights: Weights, run: str, version: int) -> None:
        if self.dead:
            raise ServerUnavailable("connection reset")
        self.has = version
        self.versions.append(version)

    def generate(self, order: GenerateRequest, vocab: int) -> Answers:
        self.orders += 1
        if self.dead:
            raise ServerUnavailable("connection reset")
        assert self.has == order.version
        time.sleep(self.pause)  # so that the others get their share
        with ONE_AT_A_TIME:
            engine = NativeEngine(POLICY, 256)
            engine.sync(order.version)
            return engine.generate(order.requests, order.sampling)


def spread(monkeypatch: pytest.MonkeyPatch, *stubs: Stub) -> WorkersEngine:
    monkeypatch.setenv("GROUPWISE_TOKEN", "x" * 20)
    found = {stub.url: stub for stub in stubs}

    class Connected:
        command = "groupwise serve"

        def __new__(cls, url: str, *_: Any) -> Any:
            return found[url]

    monkeypatch.setattr(client_module, "WorkerClient", Connected)
    workers = {"urls": [stub.url for stub in stubs], "max_staleness": 0}
    return WorkersEngine(POLICY, Config.model_validate({"workers": workers}))


def expected(version: int) -> Any:
    engine = NativeEngine(POLICY, 256)
    engine.sync(version)
    groups = engine.generate(REQUESTS, Sampling(8))
    return [[(c.tokens, c.stop, c.version) for c in group] for group in groups]


def shown(groups: Any) -> Any:
    return [[(c.tokens, c.stop, c.version) for c in group] for group in groups]


def test_each_worker_samples_its_share_and_groups_stay_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Stub("http://first:1"), Stub("http://second:1")
    engine = spread(monkeypatch, first, second)
    engine.sync(version=4)
    assert first.versions == second.versions == [4]
    assert shown(engine.generate(REQUESTS, Sampling(8))) == expected(4)
    assert first.orders + second.orders == 2
    engine.sync(version=4)  # they have it
    assert first.versions == [4]
    assert engine.generate([], Sampling(8)) == []


def test_one_that_dies_is_survived_and_comes_back_with_the_present_weights(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_module, "RETRY_SECONDS", 0.0)
    well, dying = Stub("http://well:1", pause=0.2), Stub("http://dying:1", dies_at=2)
    engine = spread(monkeypatch, well, dying)
    with caplog.at_level(logging.INFO, "groupwise"):
        for version in range(4):
            engine.sync(version)
            assert shown(engine.generate(REQUESTS, Sampling(8))) == expected(version)
    assert "http://dying:1 is gone (connection reset)" in caplog.text
    assert "http://dying:1 is back" in caplog.text
    assert dying.begun == 2 and dying.has == well.has == 3
    assert sorted(set(dying.versions)) == [0, 1, 2, 3]


def test_one_that_is_gone_is_left_aside_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    well, dying = Stub("http://well:1", pause=0.2), Stub("http://dying:1", dies_at=1, returns=False)
    engine = spread(monkeypatch, well, dying)
    with caplog.at_level(logging.WARNING, "groupwise"):
        for version in range(3):
            engine.sync(version)
            assert shown(engine.generate(REQUESTS, Sampling(8))) == expected(version)
    assert dying.orders == 1 and well.orders == 6
    assert len([r for r in caplog.records if "is gone" in r.getMessage()]) == 1


def test_when_none_is_left_the_message_names_each_and_the_way_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stubs = [Stub(f"http://{name}:1", dies_at=1, returns=False) for name in ("first", "second")]
    engine = spread(monkeypatch, *stubs)
    with pytest.raises(EngineGoneError) as raised:
        engine.generate(REQUESTS, Sampling(8))
    text = str(raised.value)
    assert "http://first:1: connection refused" in text and "http://second:1" in text
    assert "groupwise serve rollouts" in text and "run the same command again" in text


def test_that_none_is_left_is_said_when_answers_are_wanted_not_when_weights_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = spread(monkeypatch, Stub("http://first:1", dies_at=1, returns=False))
    engine.generate([], Sampling(8))
    engine.workers[0].client.orders = 1  # pyright: ignore[reportAttributeAccessIssue]
    engine.sync(version=1)
    with pytest.raises(EngineGoneError, match="connection refused"):
        engine.generate(REQUESTS, Sampling(8))


def test_a_closed_engine_reaches_nobody_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub("http://first:1", dies_at=1)
    engine = spread(monkeypatch, stub)
    engine.sync(version=0)
    engine.close()
    with pytest.raises(ModelError, match="the run is over"):
        engine.generate(REQUESTS, Sampling(8))
    assert stub.begun == 1
