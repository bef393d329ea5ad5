"""Features of a chain of thought: what counts, what does not, and that stuffing pays little."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.rewards.cot import (
    REASONING_WORDS,
    CotFeatures,
    calculations,
    cot_bonus,
    cot_features,
    numbered_steps,
    reasoning_quality,
    step_clarity,
)

GOOD = (
    "Step 1: First we find the eggs that are left: 16 - 3 - 4 = 9.\n"
    "Step 2: Then we multiply by the price, because each is sold: 9 * $2 = $18.\n"
    "Step 3: Therefore she makes $18."
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2+3 = 5, so 5 x 2 = 11", {"2+3=5": True, "5*2=11": False}),
        ("She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs", {"16-3-4=9": True}),
        ("$1,200 × 2 = $2,400.00", {"1200*2=2400.00": True}),
        ("10/3 = 3.33 and 10/3 = 3.34", {"10/3=3.33": True, "10/3=3.34": False}),
        ("7/2 = 3", {"7/2=3": False}),
        ("20% * 50 = 10", {"20%*50=10": True}),
        (r"\frac{1}{2} \times 8 = 4", {"((1)/(2))*8=4": True}),
        ("3/4 * 2 = 1 1/2 feet", {"3/4*2=11/2": True}),
        ("- 3+4=7\n1. 2+3=5", {"3+4=7": True, "2+3=5": True}),
        (".5*4 = 2.", {".5*4=2": True}),
        ("(3+4)*2=14)", {"(3+4)*2=14": True}),
        ("5 = 2 + 3", {"5=2+3": True}),
        ("2+2=4 2+2=4 2+2=4", {"2+2=4": True}),
        ("x + 3 = 7, 2x = 6, 8/3 = 24/y, 20 = 5a", {}),
        ("total - 3 + 4 = 7", {}),
        ("a == b, 3 <= 4, 1=1, = = =", {}),
        ("1/0 = 5", {}),
        ("", {}),
    ],
)
def test_calculations_are_found_and_checked(text: str, found: dict[str, bool]) -> None:
    assert calculations(text) == found


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (GOOD, 3),
        ("1. Count the eggs\n2) Sell them all\n**3.** Add it up", 3),
        ("1. Count the eggs\n2. Sell them all\n4. Add it up", 2),
        ("Step 1 is to add up. Step 2 is to halve it.", 2),
        ("2. This comes second\n1. This comes first\n", 1),
        ("1. \n2. \n3. \n", 0),
        ("1.5 apples\n2.5 pears", 0),
        ("Step 1: something\n" * 50, 1),
        ("12 eggs", 0),
        ("", 0),
    ],
)
def test_steps_count_in_order_and_with_content(text: str, steps: int) -> None:
    assert numbered_steps(text) == steps


def test_all_features_of_a_good_answer() -> None:
    assert cot_features(GOOD) == CotFeatures(
        steps=3, right_calculations=2, wrong_calculations=0, reasoning_words=6, words=24
    )
    assert cot_features(GOOD).vector() == pytest.approx((0.3, 0.2, 0.0, 0.6, 0.048))


def test_the_bonus_has_the_documented_numbers() -> None:
    assert cot_bonus(GOOD) == 0.5  # steps 0.2, two calculations 0.2, words 0.1
    assert cot_bonus("1+1=2, 2+2=4, 3+3=6, 4+4=8") == 0.3
    assert cot_bonus("1+1=3") == -0.1
    assert cot_bonus("1+1=3, 2+2=5, 3+3=7, 4+4=9, 5+5=11") == -0.3
    assert cot_bonus("1+1=2, 2+2=5") == 0.0
    assert cot_bonus("so then because") == 0.1
    assert cot_bonus("so " * 100) == 0.0
    assert cot_bonus("") == 0.0
    assert cot_bonus(" ".join(REASONING_WORDS) * 100) == 0.1


def test_reasoning_quality_is_full_for_a_good_answer_and_falls_with_mistakes() -> None:
    assert reasoning_quality(GOOD) == pytest.approx(1.0)
    assert reasoning_quality(GOOD.replace("= 9", "= 8")) == pytest.approx(0.4 + 0.1 + 0.2)
    assert reasoning_quality("so") == pytest.approx(0.2 / 3)
    assert reasoning_quality("") == 0.0


def test_clear_steps_are_fresh_short_and_say_something() -> None:
    assert step_clarity(GOOD) == 1.0
    assert step_clarity(f"<think>\n{GOOD}\n</think>\n<answer>") == 1.0
    assert step_clarity("First add 3 and 4. Then double the 7 to get 14.") == 1.0
    assert step_clarity("We add 3 and 4.") == 0.5  # one step is half of two
    assert step_clarity("Step 1: add 3 and 4\n" * 10) == pytest.approx(0.1)
    assert step_clarity("hello there\nlovely weather") == 0.0
    assert step_clarity("1 2 3 " * 100) == 0.0  # over 300 characters
    assert step_clarity("") == 0.0


@given(st.text(alphabet="0123456789+-*/=().,$%x \nStep:so", max_size=300))
def test_any_text_has_features_within_bounds(text: str) -> None:
    assert -0.3 <= cot_bonus(text) <= 0.6
    assert 0.0 <= reasoning_quality(text) <= 1.0 + 1e-12
    assert 0.0 <= step_clarity(text) <= 1.0
    assert all(0.0 <= value <= 1.0 for value in cot_features(text).vector())


def test_hostile_text_costs_little() -> None:
    start = time.perf_counter()
    for piece in ("=", "1+", "1=1 ", "(", ")", "1.1", "step 1 ", "\n", "1\n", "\\frac{", "9" * 99):
        text = piece * (100_000 // len(piece)) + "=1"
        cot_bonus(text)
        step_clarity(text)
    assert time.perf_counter() - start < 8
