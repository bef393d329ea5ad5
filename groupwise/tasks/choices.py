"""Multiple choice: AQuA-RAT and MathQA. groupwise.answers.choices judges the answers.

AQuA-RAT (Ling et al., 2017) has algebra word problems with five choices and a rationale. MathQA
(Amini et al., 2019) has the same problems, cleaned; its own files are JSON arrays, and copies that
name the columns in lower case are read too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from groupwise.answers.choices import LETTERS, correct, extract
from groupwise.answers.tags import think_answer_format
from groupwise.config.tasks import AquaRatTask, MathQaTask
from groupwise.errors import DataError
from groupwise.tasks.base import Split, Task, conversation, dataset_task
from groupwise.tasks.files import read_dataset, text_column
from groupwise.tasks.jsonl import Row
from groupwise.types import Problem

SYSTEM = (
    "You solve multiple choice problems. Think step by step between <think> and </think>, "
    "then give the letter of the right choice alone between <answer> and </answer>."
)

_LETTERED_ITEM = re.compile(r"\s*[A-Ja-j]\s*\)\s*")
_LETTERED_PART = re.compile(r"(?:^\[?|,)\s*['\"]?([a-j])\s*\)\s*")


@dataclass(frozen=True)
class Dataset:
    """Where a public dataset is, and what its rows look like."""

    title: str
    hub_id: str
    hub_name: str | None
    revision: str | None
    """Of the hub's repository (None: its main branch)."""
    question: tuple[str, ...]
    rationale: tuple[str, ...]
    read_options: Callable[[Any], list[str]]
    example: str
    """How its options are written, for error messages."""


def listed_options(value: Any) -> list[str]:
    """listed_options(["A)21", "B) 22"]) == ["21", "22"]"""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        return []
    return [_LETTERED_ITEM.sub("", text, count=1).strip() for text in value]


def joined_options(value: Any) -> list[str]:
    """joined_options("a ) 12 , b ) 1 , 600") == ["12", "1 , 600"]

    Some rows hold the text of a list instead: "['a ) 12', 'b ) 1 , 600']".
    """
    text = value.strip() if isinstance(value, str) else ""
    marks = list(_LETTERED_PART.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    if [mark[1].upper() for mark in marks] != list(LETTERS[: len(marks)]):
        return []
    parts = [text[mark.end() : end] for mark, end in zip(marks, ends, strict=False)]
    if text.startswith("["):
        parts = [part.strip().rstrip("]").rstrip("'\"") for part in parts]
    return [part.strip() for part in parts]


DATASETS = {
    "aqua_rat": Dataset(
        title="AQuA-RAT",
        hub_id="deepmind/aqua_rat",
        hub_name="raw",
        revision=None,
        question=("question",),
        rationale=("rationale",),
        read_options=listed_options,
        example="['A)21', 'B)22']",
    ),
    "mathqa": Dataset(
        title="MathQA",
        hub_id="allenai/math_qa",
        hub_name=None,
        # Its main branch is a loading script, which `datasets` no longer runs: the hub's own copy.
        revision="refs/convert/parquet",
        question=("Problem", "problem"),
        rationale=("Rationale", "rationale"),
        read_options=joined_options,
        example="'a ) 38 , b ) 27'",
    ),
}


def build(settings: AquaRatTask | MathQaTask) -> Task:
    dataset = DATASETS[settings.kind]
    splits = read_dataset(settings.path, dataset.hub_id, dataset.hub_name, dataset.revision)
    problems: dict[Split, list[Problem]] = {
        split: [problem_of(split, index, row, settings) for index, row in enumerate(rows)]
        for split, rows in splits.items()
    }
    return dataset_task(
        settings.kind,
        problems,
        settings,
        correct=correct,
        formatted=think_answer_format,
        extract=extract,
    )


def problem_of(split: str, index: int, row: Row, settings: AquaRatTask | MathQaTask) -> Problem:
    """The problem that shows the options under their letters, one a line."""
    dataset = DATASETS[settings.kind]
    question = text_column(row, dataset.title, *dataset.question)
    letter = text_column(row, dataset.title, "correct").strip().upper()
    options = dataset.read_options(row.columns.get("options"))
    if letter not in tuple(LETTERS[: len(options)]):
        raise DataError(
            f"{row.location}: {dataset.title} rows have options such as {dataset.example} and the "
            f"letter of one of them in `correct`, not {row.columns.get('options')!r} and {letter!r}"
        )
    lines = [f"{known}) {text}" for known, text in zip(LETTERS, options, strict=False)]
    rationale = next((row.columns[name] for name in dataset.rationale if name in row.columns), "")
    return Problem(
        id=f"{settings.kind}/{split}/{index}",
        prompt=conversation("\n".join([question.strip(), "", *lines]), settings.system, SYSTEM),
        columns={
            "question": question,
            "options": options,
            "answer": letter,
            "solution": str(rationale or ""),
        },
        prefill=settings.prefill,
    )
