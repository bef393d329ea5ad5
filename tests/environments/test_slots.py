"""The slot of an episode that waits for its environment is idle: others may begin, to a limit."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from environments.scripted import PROBLEM, Scripted, ScriptedEngine, episodes, user
from groupwise.environments.base import Reply, Turn
from groupwise.environments.slots import IDLE_SECONDS, EpisodeSlot, EpisodeSlots
from groupwise.load import load_parts
from groupwise.recipe import load_recipe
from groupwise.types import Request, Sampling


class Counted:
    """Environments of one turn, that reply when they are told to; how many are open, and were."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        self.wait, self.open, self.most, self.ended = wait, 0, 0, 0

    def make(self, problem: object) -> Scripted:
        counted = self
        self.open += 1
        self.most = max(self.most, self.open)

        async def step(turn: Turn) -> Reply:
            await counted.wait()
            return user("so be it", done=True)

        class Closing(Scripted):
            async def close(self) -> None:
                counted.open -= 1
                counted.ended += 1

        return Closing(step)


def run_of(counted: Counted, count: int, **options: Any) -> Any:
    runner = episodes(counted.make, **options)
    engine, samplings = ScriptedEngine(lambda prompt: "x"), [Sampling(max_tokens=20)] * count
    return runner.group(PROBLEM, engine, range(count), samplings, seed=5)


@pytest.mark.parametrize(
    ("options", "most"), [({}, 4), ({"max_open": 3}, 3), ({"max_open": 1}, 1), ({"max_open": 9}, 9)]
)
def test_a_slow_environment_lets_others_begin_up_to_the_limit(
    options: dict[str, int], most: int
) -> None:
    replies = asyncio.Event()

    async def wait() -> None:
        while not replies.is_set():
            await asyncio.sleep(0.01)

    counted = Counted(wait)

    async def played() -> None:
        group = asyncio.create_task(run_of(counted, 12, at_once=2, **options))
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if counted.open == most:
                break
        await asyncio.sleep(3 * IDLE_SECONDS)
        assert counted.open == most, "all that may begin have begun, and no more"
        replies.set()
        await group

    asyncio.run(played())
    assert (counted.most, counted.ended) == (most, 12)


def test_in_rounds_nobody_lends() -> None:
    counted = Counted(lambda: asyncio.sleep(2 * IDLE_SECONDS))
    asyncio.run(run_of(counted, 4, at_once=2, in_rounds=True))
    assert (counted.most, counted.ended) == (2, 4)


REQUEST = Request((1, 2), (0,))


def test_a_quick_environment_keeps_its_place_and_one_that_comes_back_waits_for_nobody() -> None:
    async def played() -> None:
        slots = EpisodeSlots(1, 2)
        first, second, third = (slots.slot(n) for n in range(3))
        async with first:
            waiting = asyncio.create_task(second.__aenter__())
            async with first.turn(REQUEST):
                await asyncio.sleep(2 * IDLE_SECONDS)
            await asyncio.sleep(0)
            assert not waiting.done(), "it sampled, and has waited for a moment only"
            await asyncio.wait_for(waiting, 60)
            queued = asyncio.create_task(third.__aenter__())
            async with first.turn(REQUEST):
                assert (slots.open, slots.idle) == (2, 0), "two run where one may"
                await asyncio.sleep(2 * IDLE_SECONDS)
            assert not queued.done()
        await second.__aexit__()
        await asyncio.wait_for(queued, 60)
        await third.__aexit__()
        assert (slots.open, slots.idle) == (0, 0)

    asyncio.run(played())


def test_a_request_that_outlives_its_episode_lends_nothing() -> None:
    async def played() -> tuple[int, int]:
        slots = EpisodeSlots(1, 2)
        slot = slots.slot(0)
        async with slot:
            late = slot.turn(REQUEST)
            await late.__aenter__()
        await late.__aexit__(None, None, None)
        await asyncio.sleep(2 * IDLE_SECONDS)
        return slots.open, slots.idle

    assert asyncio.run(played()) == (0, 0)


def test_no_place_is_lost_whoever_is_cancelled_and_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("groupwise.environments.slots.IDLE_SECONDS", 0.002)
    chance = random.Random(3)

    async def episode(slot: EpisodeSlot) -> None:
        async with slot:
            for _ in range(3):
                async with slot.turn(REQUEST):
                    await asyncio.sleep(chance.random() * 0.004)
                await asyncio.sleep(chance.random() * 0.008)

    async def played() -> tuple[int, int, int]:
        slots, most = EpisodeSlots(3, 5), 0
        tasks = [asyncio.create_task(episode(slots.slot(n))) for n in range(200)]
        while not all(task.done() for task in tasks):
            most = max(most, slots.open)
            for task in chance.sample(tasks, 2):
                if chance.random() < 0.2:
                    task.cancel()
            await asyncio.sleep(chance.random() * 0.002)
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        assert any(task.cancelled() for task in tasks), "or the test proves nothing"
        return slots.open, slots.idle, most

    assert asyncio.run(played()) == (0, 0, 5)


def test_the_recipe_says_how_many_may_be_open() -> None:
    overrides = ["environment=guess_number", "environment.at_once=8", "environment.max_open=9"]
    with load_parts(load_recipe("demo", [*overrides, "task.test_size=2"])) as parts:
        assert parts.episodes is not None
        assert (parts.episodes.at_once, parts.episodes.max_open) == (8, 9)
