"""MATH: competition problems whose solutions end on a LaTeX answer in \\boxed{} (Hendrycks, 2021).

Rows have `problem`, `solution`, `level` and `type`; the answer is taken out of the solution, unless
a copy of the dataset has an `answer` column. Local data is train.jsonl and test.jsonl, or the
dataset's own folders: train/algebra/1.json and so on. Answers are compared by what they mean, see
groupwise.answers.final. A validation split is taken out of train by a hash of the question.
"""

import logging
import os
from pathlib import Path

from groupwise.answers.final import boxed_answer, boxed_format, canonical_answer, correct
from groupwise.config.tasks import MathTask
from groupwise.errors import DataError
from groupwise.tasks.base import Split, Task, conversation, dataset_task
from groupwise.tasks.files import read_dataset, text_column
from groupwise.tasks.jsonl import Row, read_rows
from groupwise.types import Problem

log = logging.getLogger("groupwise")

HUB_ID, HUB_NAME = "DigitalLearningGmbH/MATH-lighteval", "default"

SYSTEM = "Reason step by step, and put your final answer within \\boxed{}."


def build(settings: MathTask) -> Task:
    problems: dict[Split, list[Problem]] = {}
    for split, rows in _rows(settings.path).items():
        answered = (_problem(split, index, row, settings) for index, row in enumerate(rows))
        problems[split] = [problem for problem in answered if problem is not None]
        lost = len(rows) - len(problems[split])
        if not problems[split]:
            raise DataError(
                f"{rows[0].location}: no solution of this file has an answer in \\boxed{{}}"
            )
        if lost:
            log.warning("math: %d %s problems have no answer in \\boxed{}; left out", lost, split)
    return dataset_task(
        "math",
        problems,
        settings,
        correct=correct,
        formatted=boxed_format,
        extract=canonical_answer,
    )


def _rows(path: str | None) -> dict[Split, list[Row]]:
    folder = Path(os.path.expanduser(path)) if path else None
    if folder is None or not (folder / "train").is_dir():
        return read_dataset(path, HUB_ID, HUB_NAME)
    rows: dict[Split, list[Row]] = {}
    for split in ("train", "test"):
        files = sorted((folder / split).glob("*/*.json"), key=lambda file: (file.parent, file.name))
        if files:
            rows[split] = [row for file in files for row in read_rows(file)]
    if "train" not in rows:
        raise DataError(f"{folder / 'train'} holds no subject folders such as algebra with 1.json")
    return rows


def _problem(split: str, index: int, row: Row, settings: MathTask) -> Problem | None:
    """None where the data has no answer: two of MATH's own boxes are empty."""
    question = text_column(row, "MATH", "problem")
    solution = text_column(row, "MATH", "solution")
    answer = boxed_answer(solution) or row.columns.get("answer")
    if not isinstance(answer, str) or not answer.strip():
        return None
    columns = {"question": question, "answer": answer, "solution": solution}
    for name in ("level", "type", "subject"):
        if name in row.columns:
            columns[name] = str(row.columns[name])
    turns = conversation(question, settings.system, SYSTEM)
    return Problem(f"math/{split}/{index}", turns, columns, settings.prefill)
