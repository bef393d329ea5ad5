"""Form and length as rewards, in numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.rewards.format import tags, think_answer
from groupwise.rewards.length import overlong_penalty

GOOD = "<think>2+2</think>\n<answer>4</answer>"


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (GOOD, 1.0),
        (GOOD + " indeed", 0.0),
        ("<answer>4</answer>", 0.0),
        ("<answer>4</answer><think>x</think>", 0.0),
        (GOOD + GOOD, 0.0),
        ("", 0.0),
    ],
)
def test_think_answer_is_all_or_nothing(completion: str, score: float) -> None:
    assert think_answer(completion) == score


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (GOOD, 1.0),
        ("before " + GOOD + " after", 1.0),
        ("<think>2+2</think>4", 0.5),
        ("<think>2+2", 0.25),
        ("<answer>4</answer><think>x</think>", 0.5),
        ("</answer></think><answer><think>", 0.25),
        (GOOD + GOOD, 0.0),
        ("<think>" * 9, 0.0),
        ("", 0.0),
    ],
)
def test_tags_is_the_share_in_place(completion: str, score: float) -> None:
    assert tags(completion) == score


def test_tags_takes_names_of_ones_own() -> None:
    assert tags("<a>1</a><b>2</b>", names=["a", "b"]) == 1.0
    assert tags("<a>1</a><b>2</b>", names=["b", "a"]) == 0.5
    assert tags("<a>", names=[]) == 0.0


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "x"])))
def test_stuffing_tags_never_beats_the_right_form(pieces: list[str]) -> None:
    score = tags("".join(pieces))
    assert 0.0 <= score <= 1.0
    if score == 1.0:
        assert [p for p in pieces if p != "x"] == ["<think>", "</think>", "<answer>", "</answer>"]


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [(0, 0.0), (90, 0.0), (91, -0.1), (95, -0.5), (100, -1.0), (120, -1.0)],
)
def test_overlong_penalty_is_linear_over_the_buffer(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, limit=100, buffer=10) == pytest.approx(penalty)
