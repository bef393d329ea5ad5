"""Several workers as one engine: who does what, and what happens when one dies."""

import asyncio
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from engines import generate, sync
from groupwise.config import Config
from groupwise.errors import EngineGoneError, ModelError
from groupwise.remote import pool as pool_module
from groupwise.remote import worker_client as client_module
from groupwise.remote.client import ServerUnavailable
from groupwise.remote.fingerprint import WorkerFingerprint, worker_fingerprint
from groupwise.remote.published_weights import PublishedWeights
from groupwise.remote.worker_client import WorkerClient, WorkersEngine
from groupwise.remote.worker_payload import GenerateRequest, RunSettings
from groupwise.rollout.native.engine import NativeEngine
from groupwise.types import Completion, Request, Sampling
from small_models import random_policy
from stubs import Stub, connect

POLICY = random_policy()
ONE_AT_A_TIME = threading.Lock()
REQUESTS = [Request((5 + n, 6), (n, 100 + n)) for n in range(6)]


@dataclass
class Worker(Stub):
    returns: bool = True
    begun: int = 0
    versions: list[int] = field(default_factory=list)
    has: int | None = None

    async def begin(self, start: RunSettings) -> WorkerFingerprint:
        if self.dead:
            self.has = None
        self.reach()
        self.begun += 1
        return worker_fingerprint(POLICY)

    async def send_weights(self, published: PublishedWeights, run: str, has: int | None) -> None:
        assert has == self.has
        if self.dead:
            raise ServerUnavailable("connection reset")
        assert published.version is not None
        self.has = published.version
        self.versions.append(published.version)

    async def generate(self, order: GenerateRequest, vocab: int, done: Any) -> None:
        self.asked += 1
        if self.dead:
            raise ServerUnavailable("connection reset")
        assert order.version in (None, self.has)
        await asyncio.sleep(self.pause)  # so that the others get their share
        for number, answers in enumerate(await asyncio.to_thread(self.answers, order)):
            done(number, answers)

    def answers(self, order: GenerateRequest) -> list[tuple[Completion, ...]]:
        with ONE_AT_A_TIME:
            engine = NativeEngine(POLICY, 256)
            sync(engine, order.version or 0)
            return generate(engine, order.requests, order.sampling)


def spread(monkeypatch: pytest.MonkeyPatch, *workers: Worker, timing: str = "in_turn") -> Any:
    connect(monkeypatch, client_module, WorkerClient, *workers)
    place = {"kind": "servers", "urls": [worker.url for worker in workers]}
    config = {"place": place, "timing": {"kind": timing}}
    return WorkersEngine(POLICY, Config.model_validate(config))


def expected(version: int) -> Any:
    engine = NativeEngine(POLICY, 256)
    sync(engine, version)
    groups = generate(engine, REQUESTS, Sampling(8))
    return [[(c.tokens, c.stop, c.version) for c in group] for group in groups]


def shown(groups: Any) -> Any:
    return [[(c.tokens, c.stop, c.version) for c in group] for group in groups]


def test_each_worker_samples_its_share_and_groups_stay_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Worker("http://first:1"), Worker("http://second:1")
    engine = spread(monkeypatch, first, second)
    sync(engine, 4)
    assert first.versions == second.versions == [4]
    assert shown(generate(engine, REQUESTS, Sampling(8))) == expected(4)
    assert first.asked + second.asked == 2
    sync(engine, 4)  # they have it
    assert first.versions == [4]
    assert generate(engine, [], Sampling(8)) == []


def test_one_that_dies_is_survived_and_comes_back_with_the_present_weights(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_module, "RETRY_SECONDS", 0.0)
    well, dying = Worker("http://well:1", pause=0.2), Worker("http://dying:1", dies_at=2)
    engine = spread(monkeypatch, well, dying)
    with caplog.at_level(logging.INFO, "groupwise"):
        for version in range(4):
            sync(engine, version)
            assert shown(generate(engine, REQUESTS, Sampling(8))) == expected(version)
    assert "http://dying:1 is gone (connection reset)" in caplog.text
    assert "http://dying:1 is back" in caplog.text
    assert dying.begun == 2 and dying.has == well.has == 3
    assert sorted(set(dying.versions)) == [0, 1, 2, 3]


def test_one_that_is_gone_is_left_aside_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    well, dying = (
        Worker("http://well:1", pause=0.2),
        Worker("http://dying:1", dies_at=1, returns=False),
    )
    engine = spread(monkeypatch, well, dying)
    with caplog.at_level(logging.WARNING, "groupwise"):
        for version in range(3):
            sync(engine, version)
            assert shown(generate(engine, REQUESTS, Sampling(8))) == expected(version)
    assert dying.asked == 1 and well.asked == 6
    assert len([r for r in caplog.records if "is gone" in r.getMessage()]) == 1


def test_when_none_is_left_the_message_names_each_and_the_way_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stubs = [Worker(f"http://{name}:1", dies_at=1, returns=False) for name in ("first", "second")]
    engine = spread(monkeypatch, *stubs)
    with pytest.raises(EngineGoneError) as raised:
        generate(engine, REQUESTS, Sampling(8))
    text = str(raised.value)
    assert "http://first:1: connection refused" in text and "http://second:1" in text
    assert "groupwise serve rollouts" in text and "run the same command again" in text


def test_that_none_is_left_is_said_when_answers_are_wanted_not_when_weights_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = spread(monkeypatch, Worker("http://first:1", dies_at=1, returns=False))
    generate(engine, [], Sampling(8))
    engine.pool.servers[0].client.asked = 1
    sync(engine, 1)
    with pytest.raises(EngineGoneError, match="connection refused"):
        generate(engine, REQUESTS, Sampling(8))


def test_a_closed_engine_reaches_nobody_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Worker("http://first:1", dies_at=1)
    engine = spread(monkeypatch, stub)
    sync(engine, 0)
    engine.close()
    with pytest.raises(ModelError, match="the run is over"):
        generate(engine, REQUESTS, Sampling(8))
    assert stub.begun == 1


def test_what_a_dead_worker_owes_is_done_apart_from_the_other_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the batch that it would have been in, which last digits depend on."""
    batches: list[tuple[str, int]] = []
    well, dying = Worker("http://well:1", pause=0.1), Worker("http://dying:1", 1, returns=False)
    engine = spread(monkeypatch, well, dying)
    original, running = Worker.generate, set[str]()

    async def watched(self: Worker, order: GenerateRequest, *more: Any) -> None:
        assert self.url not in running
        running.add(self.url)
        try:
            await original(self, order, *more)
            batches.append((self.url, len(order.requests)))
        finally:
            running.discard(self.url)

    monkeypatch.setattr(Worker, "generate", watched)
    assert shown(generate(engine, REQUESTS, Sampling(8))) == expected(0)
    assert batches == [(well.url, 3), (well.url, 3)]


def test_nobody_waits_for_what_others_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that comes while another is answered is sent at once, to who has less to do."""
    first, second = Worker("http://first:1", pause=0.3), Worker("http://second:1", pause=0.3)
    engine = spread(monkeypatch, first, second, timing="in_flight")

    async def one_after_the_other() -> list[Any]:
        sync(engine, 0)
        monkeypatch.setattr(Worker, "answers", lambda self, order: [() for _ in order.requests])
        asked, began = [], time.monotonic()
        for request in REQUESTS:
            asked.append(asyncio.create_task(engine.sample(request, Sampling(8))))
            await asyncio.sleep(0.02)
        assert all(not task.done() for task in asked)
        done = await asyncio.gather(*asked)
        assert time.monotonic() - began < 1.5
        return done

    assert asyncio.run(one_after_the_other()) == [()] * len(REQUESTS)
    assert (first.asked, second.asked) == (3, 3)


def test_who_gives_up_waiting_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker("http://first:1", pause=20)
    engine = spread(monkeypatch, worker)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.sample(REQUESTS[0], Sampling(8)), 0.2)

    asyncio.run(give_up())
    deadline = time.monotonic() + 5
    while engine.pool.servers[0].load and time.monotonic() < deadline:
        time.sleep(0.01)
    assert worker.asked == 1 and engine.pool.servers[0].load == 0
