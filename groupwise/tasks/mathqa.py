"""MathQA: AQuA's problems, cleaned and annotated with programs (Amini et al., 2019).

Rows have `Problem`, `Rationale`, `options` ("a ) 38 , b ) 27 , ...") and `correct` (a letter). Its
own files are JSON arrays; copies that name the columns in lower case are read too.
"""

import re

from groupwise.config import MathQaTask
from groupwise.errors import DataError
from groupwise.tasks.base import Split, Task
from groupwise.tasks.choices import LETTERS, problem_of, task_of
from groupwise.tasks.files import read_dataset, text_column
from groupwise.tasks.jsonl import Row
from groupwise.types import Problem

HUB_ID = "allenai/math_qa"

_LETTERED = re.compile(r"(?:^\[?|,)\s*['\"]?([a-j])\s*\)\s*")


def build(settings: MathQaTask) -> Task:
    rows = read_dataset(settings.path, HUB_ID)
    problems: dict[Split, list[Problem]] = {
        split: [_problem(split, index, row, settings) for index, row in enumerate(found)]
        for split, found in rows.items()
    }
    return task_of("mathqa", problems, settings)


def options_of(text: str) -> list[str]:
    """options_of("a ) 12 , b ) 1 , 600") == ["12", "1 , 600"]

    Some rows hold the text of a list instead: "['a ) 12', 'b ) 1 , 600']".
    """
    marks = list(_LETTERED.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    if [mark[1].upper() for mark in marks] != list(LETTERS[: len(marks)]):
        return []
    parts = [text[mark.end() : end] for mark, end in zip(marks, ends, strict=False)]
    if text.startswith("["):
        parts = [part.strip().rstrip("]").rstrip("'\"") for part in parts]
    return [part.strip() for part in parts]


def _problem(split: str, index: int, row: Row, settings: MathQaTask) -> Problem:
    question = text_column(row, "MathQA", "Problem", "problem")
    listed = text_column(row, "MathQA", "options")
    letter = text_column(row, "MathQA", "correct").strip().upper()
    options = options_of(listed.strip())
    if letter not in tuple(LETTERS[: len(options)]):
        raise DataError(
            f"{row.place}: MathQA rows have options such as 'a ) 38 , b ) 27' and the letter of "
            f"one of them in `correct`, not {listed!r} and {letter!r}"
        )
    solution = str(row.columns.get("Rationale") or row.columns.get("rationale") or "")
    return problem_of(f"mathqa/{split}/{index}", question, options, letter, solution, settings)
