"""Weighted sums, and what a function's parameters say about it."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.errors import RewardError
from groupwise.rewards.base import Reward, check_arguments, signature_of, weighted


def test_the_weighted_sum_leaves_none_out() -> None:
    scores = {"right": [1.0, None, None], "form": [0.5, 0.5, None]}
    assert weighted(scores, {"right": 1.0, "form": 0.2}) == [1.1, 0.1, None]


def test_a_weight_of_zero_is_a_metric() -> None:
    assert weighted({"a": [3.0], "b": [5.0]}, {"a": 1.0, "b": 0.0}) == [3.0]


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), max_size=5))
def test_the_sum_is_that_of_the_products(lines: list[tuple[float, float]]) -> None:
    scores = {"a": [a for a, _ in lines], "b": [b for _, b in lines]}
    expected = [2.0 * a - b for a, b in lines]
    assert weighted(scores, {"a": 2.0, "b": -1.0}) == pytest.approx(expected)


def test_parameters_tell_the_two_kinds_apart() -> None:
    def short(completion: str, answer: str, limit: int = 3) -> float:
        return 0.0

    async def batch(prompts: list, completions: list, answer: list, **rest: object) -> list:
        return []

    one, all_ = signature_of(short), signature_of(batch)
    assert (one.batch, one.required, one.takes_any, one.asynchronous) == (
        False, ("answer",), False, False,
    )  # fmt: skip
    assert one.accepts("limit") and not one.accepts("level")
    assert (all_.batch, all_.required, all_.takes_any, all_.asynchronous) == (
        True, ("answer",), True, True,
    )  # fmt: skip


def test_callable_objects_and_partials_are_functions_too() -> None:
    class Judge:
        async def __call__(self, completion: str, question: str) -> float:
            return 0.0

    assert signature_of(Judge()).required == ("question",)
    assert signature_of(Judge()).asynchronous
    partial = functools.partial(lambda completion, answer: 0.0, answer="4")
    assert signature_of(partial).required == ()
    assert signature_of(lambda **everything: []).batch


def test_functions_that_are_no_rewards_are_refused() -> None:
    with pytest.raises(RewardError, match="neither a parameter `completion`"):
        signature_of(lambda text: 0.0)
    with pytest.raises(RewardError, match="remove the `/` after completion"):
        signature_of(_positional)
    with pytest.raises(RewardError, match="does not tell its parameters"):
        signature_of(min)


def _positional(completion: str, /) -> float:
    return 0.0


def test_an_option_fills_a_parameter_and_wins_over_a_column() -> None:
    signature = signature_of(lambda completion, answer: 0.0)
    check_arguments(Reward("r", "m:f", options={"answer": "4"}), signature, [])
    with pytest.raises(RewardError, match=r"needs `answer`.*columns are: none"):
        check_arguments(Reward("r", "m:f"), signature, [])
    with pytest.raises(RewardError, match="no parameter for the option `completion`"):
        check_arguments(Reward("r", "m:f", options={"completion": 1}), signature, ["answer"])
