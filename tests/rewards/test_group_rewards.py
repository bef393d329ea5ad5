"""Rewards that see the whole group, and rewards that yield their scores as they come."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from groupwise.errors import RewardError
from groupwise.rewards.base import Reward
from groupwise.rewards.scorer import Scorer
from groupwise.types import Problem

ONE, TWO = Problem("one", "1?", {"answer": "1"}), Problem("two", "2?", {"answer": "2"})


def score(function: Any, problems: list[Problem], timeout: float = 5.0, **settings: Any) -> list:
    with Scorer([Reward("r", function, **settings)], timeout, "stop") as scorer:
        return scorer.score(problems, [str(n) for n in range(len(problems))])["r"]


def test_answers_to_one_problem_that_stand_together_share_a_group() -> None:
    def number(completions: list[str], group_ids: list[int]) -> list[float]:
        return [float(group) for group in group_ids]

    assert score(number, [ONE, ONE, TWO, TWO, ONE]) == [0.0, 0.0, 1.0, 1.0, 2.0]


def test_only_a_function_that_names_group_ids_gets_them() -> None:
    def count(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        assert set(columns) == {"answer"}
        return [0.0] * len(completions)

    assert score(count, [ONE, TWO]) == [0.0, 0.0]
    with pytest.raises(RewardError, match="no parameter for the option `group_ids`"):
        score(count, [ONE], options={"group_ids": [3]})


def test_a_function_that_yields_has_the_time_limit_for_each_step() -> None:
    def slowly(completions: list[str]) -> Iterator[float]:
        for completion in completions:
            time.sleep(0.2)
            yield float(completion)

    assert score(slowly, [ONE] * 5, timeout=0.7) == [0.0, 1.0, 2.0, 3.0, 4.0]

    def stuck(completions: list[str]) -> Iterator[float]:
        yield from [0.0] * (len(completions) - 1)
        time.sleep(3)
        yield 0.0

    with pytest.raises(RewardError, match=r"did not return within 0\.5 s"):
        score(stuck, [ONE] * 3, timeout=0.5)


@pytest.mark.parametrize(
    ("extra", "message"), [(-1, "yielded 1 scores for 2"), (1, "yielded more than 2 scores for 2")]
)
def test_a_function_must_yield_one_score_for_each_answer(extra: int, message: str) -> None:
    def wrong(completions: list[str]) -> Iterator[float]:
        # Only called with both answers does it fail, so no single one is to blame.
        yield from [1.0] * (len(completions) + extra * (len(completions) > 1))

    with pytest.raises(RewardError, match=message):
        score(wrong, [ONE, TWO])


def test_a_score_that_is_none_is_named_among_those_yielded() -> None:
    def odd(completions: list[str]) -> Iterator[Any]:
        for completion in completions:
            yield "high" if completion == "1" else 0.5

    with pytest.raises(RewardError, match=r"answer 1 .*returned 'high'"):
        score(odd, [ONE, ONE, ONE])
