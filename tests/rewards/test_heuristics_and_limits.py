"""Rewards by looks and limits: their numbers, and that looks never outweigh the truth."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.rewards.heuristics import heuristic, reasoned
from groupwise.rewards.limits import language, length_limits, repetition

GOOD = (
    "Step 1: First, 16 - 3 - 4 = 9 eggs are left.\n"
    "Step 2: Then 9 * 2 = 18, because each costs 2.\n"
    "Step 3: Therefore the answer is 18."
)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (GOOD, 1.0),
        ("", 0.0),
        ("18", 0.25),
        ("I do not know, I am sorry.", 0.25),
        ("The answer is 18, I think.", 0.5),
        ("So 9 * 2 = 18 dollars a day.", 0.75),
        ("So 9 * 2 = 19 dollars a day.", 0.5),
        (GOOD + " Nice." * 100, 0.75),
        ("1 2 3 4 5 6 7 8 9 10 11 12 13", 0.5),
        ("x" * 100_000, 0.0),
    ],
)
def test_the_heuristic_counts_four_signs(text: str, score: float) -> None:
    assert heuristic(text) == score


def test_the_heuristics_lengths_are_options() -> None:
    assert heuristic("18", least=1) == 0.5
    assert heuristic(GOOD, most=50) == 0.75


def test_correctness_reasoning_and_brevity_add_up() -> None:
    assert reasoned(GOOD, "18") == pytest.approx(1.6)
    assert reasoned(GOOD, "19") == pytest.approx(0.6)
    assert reasoned("18", "18") == pytest.approx(1.1)
    assert reasoned("<answer>18</answer>" + " " * 1181, "18") == pytest.approx(1.05)
    assert reasoned("<answer>18</answer>" + " " * 5000, "18") == pytest.approx(1.0)
    assert reasoned("", "18") == reasoned(" \n", "18") == 0.0


@given(st.text(max_size=200), st.integers(0, 50))
def test_a_wrong_answer_never_reaches_a_right_one(noise: str, times: int) -> None:
    wrong = f"{GOOD * times}{noise}<answer>17</answer>"
    assert reasoned(wrong, "18") <= 0.6 + 1e-9 < 1.0 <= reasoned("<answer>18</answer>", "18")


def test_repetition_is_the_share_of_old_n_grams() -> None:
    assert repetition("so so so so so so so", size=2) == pytest.approx(-5 / 6)
    assert repetition("a b c d e f g h") == 0.0
    assert repetition("a b c") == repetition("") == 0.0
    assert repetition("and so on " * 1000) == pytest.approx(-1.0, abs=0.01)
    assert repetition("and so on " * 1000, most=0.5) == pytest.approx(-0.5, abs=0.01)
    assert repetition("ha" * 5000) < -0.9  # one endless word
    assert repetition("哈" * 5000) < -0.9


def test_language_is_the_share_of_letters_in_its_script() -> None:
    assert language("The answer is 42.") == 1.0
    assert language("答案是四十二") == 0.0
    assert language("答案是四十二", language="zh") == 1.0
    assert language("ответ", language="ru") == 1.0
    assert language("abc где") == 0.5
    assert language("Let θ = π/2") == 1.0  # mathematics, in any language
    assert language("größer, naïve, ça") == 1.0
    assert language("42") == language("") == 1.0
    with pytest.raises(ValueError, match="unknown language 'xx': one of en"):
        language("a", language="xx")


def test_length_limits_are_inclusive_and_ignore_outer_space() -> None:
    assert [length_limits("a" * n, least=2, most=4) for n in range(6)] == [-1, -1, 0, 0, 0, -1]
    assert length_limits("  abc \n", least=2, most=4) == 0.0
    assert length_limits("   ") == -1.0


@given(st.text(max_size=300))
def test_limits_stay_in_their_ranges(text: str) -> None:
    assert -1.0 <= repetition(text) <= 0.0
    assert 0.0 <= language(text) <= 1.0
    assert math.isfinite(heuristic(text))


def test_huge_texts_cost_little() -> None:
    start = time.perf_counter()
    for text in ("a" * 10**6, "a " * 500_000, "é" * 10**6, "1=1 " * 250_000):
        repetition(text)
        language(text)
        heuristic(text)
        reasoned(text, "1")
    assert time.perf_counter() - start < 8
