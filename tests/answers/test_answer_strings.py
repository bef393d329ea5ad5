"""Ten thousand answers, judged one by one: the checker must agree with 99 %.

answer_strings.jsonl was not made from what the checker says. A line has the truth
(`answer`), either a whole `completion` or the answer taken out of one (`given`), and the verdict.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from groupwise.answers import choices
from groupwise.answers.final import correct, same_answer

LINES: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "answer_strings.jsonl").read_text("utf-8").splitlines()
]


def verdict(line: dict[str, Any]) -> bool:
    if "given" in line:
        return same_answer(line["given"], line["answer"])
    return correct(line["completion"], line["answer"])


def test_the_strings_are_many_different_and_of_both_kinds() -> None:
    assert len(LINES) >= 1000
    assert len({json.dumps(line, sort_keys=True) for line in LINES}) == len(LINES)
    share = sum(line["equal"] for line in LINES) / len(LINES)
    assert 0.4 < share < 0.6


def test_the_checker_agrees_with_a_person_on_every_fifth_string_and_is_quick() -> None:
    verdict({"given": "x+1", "answer": "1+x"})  # imports what the first formula needs
    agrees_and_is_quick(LINES[::5])


@pytest.mark.slow  # formulas take 20 ms each
def test_the_checker_agrees_with_a_person_on_all_strings() -> None:
    agrees_and_is_quick(LINES)


def agrees_and_is_quick(lines: list[dict[str, Any]]) -> None:
    wrong, slowest = [], 0.0
    for line in lines:
        start = time.process_time()
        if verdict(line) != line["equal"]:
            wrong.append(line)
        slowest = max(slowest, time.process_time() - start)
    assert len(wrong) <= 0.01 * len(lines), wrong
    assert slowest < 3.0


def test_choices_are_read_as_a_person_reads_them() -> None:
    """choice_strings.jsonl: whole answers to a question with five options, judged by hand."""
    text = (Path(__file__).parent / "choice_strings.jsonl").read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    wrong = [
        line
        for line in lines
        if choices.correct(line["completion"], line["answer"], line["options"]) != line["right"]
    ]
    assert len(lines) > 120 and len(wrong) <= 0.01 * len(lines), wrong
