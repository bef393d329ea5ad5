"""Turns in rounds: what is sampled together does not depend on how fast environments reply."""

import asyncio
import random

import pytest

from environments.scripted import PROBLEM, Scripted, ScriptedEngine, episodes, user
from groupwise.environments.base import Reply, Turn
from groupwise.types import Completion, Problem, Request, Sampling


class Together(ScriptedEngine):
    """Notes which requests came together."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: "x")
        self.rounds: list[list[int]] = []
        self.open = False

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        if not self.open:
            self.open = True
            self.rounds.append([])
            asyncio.get_running_loop().call_soon(self._close)
        self.rounds[-1].append(request.keys[0])
        return await super().sample(request, sampling)

    def _close(self) -> None:
        self.open = False


def uneven(problem: Problem) -> Scripted:
    """Three to five turns by episode, each reply at a time of its own; one episode fails."""
    turns, number = 0, int(problem.id)

    async def step(turn: Turn) -> Reply:
        nonlocal turns
        turns += 1
        await asyncio.sleep(random.random() * 0.02)
        if number % 5 == 4 and turns == 2:
            raise RuntimeError("out of order")
        return user("go on", done=turns == 3 + number % 3)

    return Scripted(step)


@pytest.mark.parametrize("at_once", [256, 3])
def test_rounds_are_the_same_however_fast_replies_come(at_once: int) -> None:
    def played(in_rounds: bool) -> list[list[int]]:
        engine, samplings = Together(), [Sampling(max_tokens=200)]
        runner = episodes(uneven, at_once=at_once, in_rounds=in_rounds)

        async def gather() -> None:
            problems = [Problem(str(n), PROBLEM.prompt) for n in range(8)]
            groups = (runner.group(p, engine, (int(p.id),), samplings, seed=5) for p in problems)
            await asyncio.gather(*groups)

        asyncio.run(gather())
        return engine.rounds

    first = played(in_rounds=True)
    assert max(map(len, first)) == min(at_once, 8)
    assert all(played(in_rounds=True) == first for _ in range(4))
    assert played(in_rounds=False) != first, "or the test proves nothing"


def test_an_episode_that_is_cancelled_is_not_waited_for() -> None:
    async def cancelled() -> list[list[int]]:
        engine, samplings = Together(), [Sampling(max_tokens=50)]
        hanging = asyncio.Event()

        def make(problem: Problem) -> Scripted:
            if problem.id == "hangs":
                return Scripted(lambda turn: hanging.wait())
            return Scripted(lambda turn: user("go on"))

        runner = episodes(make, in_rounds=True)
        other = Problem("hangs", PROBLEM.prompt)
        stuck = asyncio.create_task(runner.group(other, engine, (1,), samplings, seed=5))
        group = asyncio.create_task(runner.group(PROBLEM, engine, (2,), samplings, seed=5))
        while not engine.rounds:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert not group.done()
        stuck.cancel()
        await asyncio.wait_for(group, 60)
        return engine.rounds

    assert [len(keys) for keys in asyncio.run(cancelled())] == [2, 1, 1, 1, 1, 1, 1, 1]
