"""The rewards of known systems give exactly their numbers, and cannot be gamed for more."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.rewards import cookbook, countdown, lm_book, simple_grpo

WHOLE = "<start_working_out>\n2 * 9\n<end_working_out>\n<SOLUTION>\n18\n</SOLUTION>"


def solution(text: str) -> str:
    return f"<start_working_out>x<end_working_out><SOLUTION>{text}</SOLUTION>"


@pytest.mark.parametrize(
    ("text", "exact", "approximate"),
    [
        (WHOLE, 3.0, 2.0),
        (f"\n {WHOLE} \n", 3.0, 2.0),
        (f"Well. {WHOLE}", 0.0, 2.0),
        (f"{WHOLE} So it is 18.", 0.0, 2.0),
        (WHOLE.replace("</SOLUTION>", ""), 0.0, 1.0),
        (WHOLE + "<SOLUTION>", 0.0, 1.0),
        (WHOLE * 2, 0.0, -2.0),
        (WHOLE.replace("\n<SOLUTION>", "so<SOLUTION>"), 0.0, 2.0),
        (WHOLE.replace("18", " "), 0.0, 2.0),
        (WHOLE.replace("2 * 9", ""), 0.0, 2.0),
        ("<SOLUTION>18</SOLUTION><start_working_out>x<end_working_out>", 0.0, 2.0),
        ("18", 0.0, -2.0),
        ("", 0.0, -2.0),
        ("<solution>18</solution>", 0.0, -2.0),
    ],
)
def test_cookbook_format(text: str, exact: float, approximate: float) -> None:
    assert cookbook.exact_format(text) == exact
    assert cookbook.approximate_format(text) == approximate


@pytest.mark.parametrize(
    ("given", "truth", "answer", "number"),
    [
        ("100", "100", 3.0, 1.5),
        ("100.0", "100", 3.0, 1.5),
        ("$1,234", "1234", 3.0, 1.5),
        ("-5", "-5", 3.0, 1.5),
        ("−5", "-5", 3.0, 1.5),
        ("5", "-5", -0.5, 0.0),
        ("The answer is 100 apples.", "100", 3.0, 1.5),
        ("110", "100", 1.5, 0.0),
        ("90", "100", 1.5, 0.0),
        ("-110", "-100", 1.5, 0.0),
        ("110.01", "100", 0.5, 0.0),
        ("120", "100", 0.5, 0.0),
        ("80", "100", 0.5, 0.0),
        ("120.01", "100", -0.5, 0.0),
        ("0", "100", -0.5, 0.0),
        ("0.001", "0", -0.5, 0.0),
        ("0", "0", 3.0, 1.5),
        ("1234", "1,234", 3.0, 1.5),
        ("1", "1,234", -0.5, 0.0),
        ("a lot", "100", -0.5, 0.0),
        ("99 100 101", "100", -0.5, 0.0),
        ("100 or 101", "100", -0.5, 0.0),
        ("", "100", 0.0, 0.0),
        ("  \n", "100", 0.0, 0.0),
        ("1e999999999", "100", -0.5, 0.0),
    ],
)
def test_cookbook_answer_and_number(given: str, truth: str, answer: float, number: float) -> None:
    assert cookbook.answer(solution(given), truth) == answer
    assert cookbook.number(solution(given), truth) == number


def test_cookbook_finds_no_answer_outside_the_only_solution() -> None:
    for text in ("100", "<SOLUTION>100", solution("100") * 2, "</SOLUTION>100<SOLUTION>"):
        assert cookbook.answer(text, "100") == 0.0
    assert cookbook.number("<SOLUTION>100", "100") == 1.5  # cut off right behind the number
    assert cookbook.number(solution("100") * 2, "100") == 0.0
    assert cookbook.number("</SOLUTION><SOLUTION>100", "100") == 0.0
    assert cookbook.number("100", "100") == 0.0


NUMBERS, TARGET = [3, 5, 8], 16


@pytest.mark.parametrize(
    ("answer", "nano", "equation"),
    [
        ("3+5+8", 1.0, 1.0),
        (" 8 * (5 - 3) ", 1.0, 1.0),
        ("8*(5-3)=16", 0.5, 0.0),
        ("16", 1.0, 0.0),
        ("8+8", 1.0, 0.0),
        ("3+5+8+0", 1.0, 0.0),
        ("8+5-3", 1.0, 0.0),
        ("3.0+5+8", 1.0, 0.0),
        ("3+5+8; import os", 0.5, 0.0),
        ("__import__('os')", 0.5, 0.0),
        ("9**9**9**9", 1.0, 0.0),
        ("", 0.5, 0.0),
        ("(" * 10_000, 1.0, 0.0),
    ],
)
def test_countdown_numbers(answer: str, nano: float, equation: float) -> None:
    text = f"<think>let me see</think>\n<answer>{answer}</answer>"
    assert countdown.nano_format(text) == nano
    assert countdown.zero_format(text) == 1.0
    assert countdown.equation(text, NUMBERS, TARGET) == equation


@pytest.mark.parametrize(
    ("text", "nano", "zero", "equation"),
    [
        ("<think>x</think> and <answer>3+5+8</answer>", 0.0, 0.6, 1.0),
        ("<answer>3+5+8</answer>", 0.0, 0.5, 1.0),
        ("<think>x</think>", 0.0, 0.1, 0.0),
        ("3+5+8", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
        ("<think>x</think><answer>3+5+8</answer><answer>1</answer>", 0.0, 0.1, 0.0),
        ("<think></think><answer></answer>" * 50, 0.0, 0.0, 0.0),
    ],
)
def test_countdown_partial_forms(text: str, nano: float, zero: float, equation: float) -> None:
    assert countdown.nano_format(text) == nano
    assert countdown.zero_format(text) == pytest.approx(zero)
    assert countdown.equation(text, NUMBERS, TARGET) == equation


def test_simple_grpo_numbers() -> None:
    right = "<think>9 * 2</think><answer>$18</answer>"
    assert simple_grpo.answer(right, "18") + simple_grpo.form(right) == 2.25
    assert simple_grpo.answer(right, "19") == -1.0
    assert simple_grpo.answer("so it is 18", "18") == 1.0
    assert simple_grpo.answer("", "18") == -1.0
    assert simple_grpo.form("so it is 18") == -1.0
    assert simple_grpo.form(f"{right}{right}") == -1.0
    assert simple_grpo.form("") == -1.0


@pytest.mark.parametrize(
    ("text", "answer", "form"),
    [
        ("<reasoning>\nx\n</reasoning>\n<answer>\n18\n</answer>", 2.0, 0.8),
        ("<reasoning>x</reasoning><answer>The answer is 18.</answer>", 1.5, 0.8),
        ("<reasoning>x</reasoning><answer>18.0</answer>", 1.5, 0.8),
        ("<reasoning>x</reasoning><answer>-18</answer>", 0.0, 0.8),
        ("<reasoning>x</reasoning><answer>17 18</answer>", 0.0, 0.8),
        ("<answer>18</answer>", 2.0, 0.4),
        ("<reasoning>x<answer>18</answer>", 2.0, 0.6),
        ("18", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("<answer></answer>", 0.0, 0.4),
        ("<reasoning></reasoning><answer></answer>" * 9, 0.0, 0.0),
        ("<answer>17</answer><answer>18</answer>", 0.0, 0.0),
    ],
)
def test_lm_book_numbers(text: str, answer: float, form: float) -> None:
    assert lm_book.answer(text, "18") == answer
    assert lm_book.form(text) == pytest.approx(form)


ALL: list[Callable[[str], float]] = [
    cookbook.exact_format,
    cookbook.approximate_format,
    lambda text: cookbook.answer(text, "18"),
    lambda text: cookbook.number(text, "18"),
    countdown.nano_format,
    countdown.zero_format,
    lambda text: countdown.equation(text, NUMBERS, TARGET),
    lambda text: simple_grpo.answer(text, "18"),
    simple_grpo.form,
    lambda text: lm_book.answer(text, "18"),
    lm_book.form,
]
PIECES = ["<think>", "</think>", "<answer>", "</answer>", "<SOLUTION>", "</SOLUTION>", "18", "\n"]
PIECES += ["<start_working_out>", "<end_working_out>", "<reasoning>", "</reasoning>", "3+5+8", "."]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=20).map("".join))
def test_no_text_earns_more_than_a_right_answer_in_full_form(text: str) -> None:
    most = [3.0, 2.0, 3.0, 1.5, 1.0, 1.0, 1.0, 1.0, 1.25, 2.0, 0.8]
    for reward, limit in zip(ALL, most, strict=True):
        assert -2.0 <= reward(text) <= limit + 1e-12


def test_huge_answers_cost_little() -> None:
    start = time.process_time()
    for piece in (*PIECES, "1 ", "(", "<", "a"):
        for reward in ALL:
            reward(piece * (200_000 // len(piece)))
            reward(solution(piece * (100_000 // len(piece))))
    assert time.process_time() - start < 10
