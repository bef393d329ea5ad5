"""GSM8K: grade-school word problems (Cobbe et al., 2021), from the hub or from local JSON Lines.

Each row has a `question` and an `answer` whose last line is "#### 42". GSM8K has no validation
split, so the end of its training file is one. A completion is asked for in <think> and <answer>
tags, or in another form of groupwise.tasks.gsm8k_forms, which the format judge checks; the answer
itself counts in any usual form. Worked examples are the first rows of the training file, which are
then not trained on.
"""

import os
import re
from pathlib import Path

from groupwise.config.tasks import Gsm8kTask
from groupwise.errors import DataError
from groupwise.tasks.base import Task, conversation
from groupwise.tasks.gsm8k_forms import FORMS
from groupwise.tasks.hub import load_splits, split_rows
from groupwise.tasks.jsonl import Row, read_rows
from groupwise.types import Message, Problem

HUB_ID, HUB_NAME = "openai/gsm8k", "main"

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")


def build(settings: Gsm8kTask) -> Task:
    train_rows, test_rows = _rows(settings.path)
    shots, kept = settings.few_shot, len(train_rows) - settings.validation_size
    examples = tuple(turn for row in train_rows[:shots] for turn in _example(row, settings))
    train = [_problem("train", i, row, examples, settings) for i, row in enumerate(train_rows)]
    test = [_problem("test", i, row, examples, settings) for i, row in enumerate(test_rows)]
    if kept <= shots:
        raise DataError(
            f"gsm8k's training file has {len(train)} problems, so "
            f"task.validation_size={settings.validation_size} and task.few_shot={shots} leave none "
            f"to train on: set them below {len(train)} together"
        )
    form = FORMS[settings.answer_format]
    return Task(
        name="gsm8k",
        train=train[shots:kept][: settings.train_size],
        validation=train[kept:][: settings.test_size],
        test=test[: settings.test_size],
        correct=form.correct,
        formatted=form.formatted,
        extract=form.extract,
    )


def _rows(path: str | None) -> tuple[list[Row], list[Row]]:
    if path is None:
        dataset = load_splits(HUB_ID, HUB_NAME)
        return split_rows(dataset, HUB_ID, "train"), split_rows(dataset, HUB_ID, "test")
    folder = Path(os.path.expanduser(path))
    return read_rows(folder / "train.jsonl"), read_rows(folder / "test.jsonl")


def _problem(
    split: str, index: int, row: Row, examples: tuple[Message, ...], settings: Gsm8kTask
) -> Problem:
    question, solution, final = _read(row)
    default = FORMS[settings.answer_format].system
    return Problem(
        id=f"gsm8k/{split}/{index}",
        prompt=conversation(question, settings.system, default, examples),
        columns={"question": question, "answer": final, "solution": solution},
        prefill=settings.prefill,
    )


def _example(row: Row, settings: Gsm8kTask) -> tuple[Message, Message]:
    """A worked example as two turns, in the form that is asked for, without calculator marks."""
    question, solution, final = _read(row)
    reasoning = _CALCULATOR.sub("", solution.rpartition("####")[0]).strip()
    form = FORMS[settings.answer_format].example
    answer = form.replace("{reasoning}", reasoning).replace("{final}", final)
    return {"role": "user", "content": question.strip()}, {"role": "assistant", "content": answer}


def _read(row: Row) -> tuple[str, str, str]:
    """A row's question, its solution, and the final number of that."""
    question, solution = row.columns.get("question"), row.columns.get("answer")
    if not isinstance(question, str) or not isinstance(solution, str):
        raise DataError(
            f"{row.location}: gsm8k rows have the text columns question and answer, "
            f"this one has: {', '.join(sorted(row.columns)) or 'none'}. "
            "For columns of your own use task.kind=jsonl"
        )
    _, marker, final = solution.rpartition("####")
    if not marker or not final.strip():
        raise DataError(f"{row.location}: the answer must end with '#### ' and the final number")
    return question, solution, final.strip().replace(",", "")
