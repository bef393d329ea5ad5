"""AQuA-RAT: algebra word problems with five choices and a rationale (Ling et al., 2017).

Rows have `question`, `options` (["A)21", ...]), `rationale` and `correct` (a letter).
"""

import re
from typing import Any

from groupwise.config import AquaRatTask
from groupwise.errors import DataError
from groupwise.tasks.base import Split, Task
from groupwise.tasks.choices import LETTERS, problem_of, task_of
from groupwise.tasks.files import read_dataset, text_column
from groupwise.tasks.jsonl import Row
from groupwise.types import Problem

HUB_ID, HUB_NAME = "deepmind/aqua_rat", "raw"

_LETTERED = re.compile(r"\s*[A-Ja-j]\s*\)\s*")


def build(settings: AquaRatTask) -> Task:
    rows = read_dataset(settings.path, HUB_ID, HUB_NAME)
    problems: dict[Split, list[Problem]] = {
        split: [_problem(split, index, row, settings) for index, row in enumerate(found)]
        for split, found in rows.items()
    }
    return task_of("aqua_rat", problems, settings)


def _problem(split: str, index: int, row: Row, settings: AquaRatTask) -> Problem:
    question = text_column(row, "AQuA-RAT", "question")
    letter = text_column(row, "AQuA-RAT", "correct").strip().upper()
    options = _options(row.columns.get("options"))
    if letter not in tuple(LETTERS[: len(options)]):
        raise DataError(
            f"{row.place}: AQuA-RAT rows have options such as ['A)21', 'B)22'] and the letter of "
            f"one of them in `correct`, not {row.columns.get('options')!r} and {letter!r}"
        )
    solution = str(row.columns.get("rationale") or "")
    return problem_of(f"aqua_rat/{split}/{index}", question, options, letter, solution, settings)


def _options(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        return []
    return [_LETTERED.sub("", text, count=1).strip() for text in value]
