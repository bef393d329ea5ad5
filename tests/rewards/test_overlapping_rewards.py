"""Rewards that wait run while others do; what they find is told in the recipe's order."""

import logging
import time
from typing import Any

import pytest

import some_rewards
from groupwise.errors import RewardError
from groupwise.rewards.base import Reward
from groupwise.rewards.scorer import Scorer
from groupwise.types import Problem

PROBLEM = Problem("p", "x", {"answer": "4"})
FILE = some_rewards.__file__


def waits(name: str) -> Reward:
    return Reward(name, f"{FILE}:waits_a_second")


def test_waiting_rewards_overlap_each_other_and_the_rest() -> None:
    rewards = [waits("one"), Reward("slow", f"{FILE}:slow"), waits("two"), waits("three")]
    with Scorer(rewards, 10.0, "stop") as scorer:
        start = time.monotonic()
        scores = scorer.score([PROBLEM] * 2, ["4", "5"])
        taken = time.monotonic() - start
    assert list(scores) == ["one", "slow", "two", "three"]
    assert all(values == [1.0, 1.0] for values in scores.values())
    assert taken < 2.5  # one after the other they take 3.8 s


def test_coroutines_of_this_process_overlap_too() -> None:
    import asyncio

    def waiting(seconds: float) -> Any:
        async def wait(completion: str) -> float:
            await asyncio.sleep(seconds)
            return seconds

        return wait

    rewards = [Reward(str(number), waiting(0.5)) for number in range(4)]
    with Scorer(rewards, 10.0, "stop") as scorer:
        start = time.monotonic()
        assert scorer.score([PROBLEM], ["4"]) == {str(number): [0.5] for number in range(4)}
        assert time.monotonic() - start < 1.5


def test_failures_of_several_places_are_logged_in_the_recipes_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ["awaits_and_raises", "raises", "awaits_forever", "nan"]
    rewards = [Reward(name, f"{FILE}:{name}") for name in names]
    with (
        caplog.at_level(logging.WARNING, logger="groupwise"),
        Scorer(rewards, 0.3, "skip") as scorer,
    ):
        assert scorer.score([PROBLEM] * 2, ["fine", "bad"]) == {n: [1.0, None] for n in names}
        assert scorer.errors == 4
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split("'")[1] for line in lines] == names


def test_a_failure_in_one_place_stops_the_whole_and_the_scorer_can_go_on() -> None:
    rewards = [waits("one"), Reward("raises", f"{FILE}:raises")]
    with Scorer(rewards, 5.0, "stop") as scorer:
        with pytest.raises(RewardError, match="'raises' failed on answer 1"):
            scorer.score([PROBLEM] * 2, ["fine", "bad"])
        assert scorer.score([PROBLEM], ["fine"]) == {"one": [1.0], "raises": [1.0]}
