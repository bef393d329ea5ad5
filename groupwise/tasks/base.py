"""What a task is: problems in three disjoint splits, and how to judge an answer to one.

A task is made by a function in a file of its own; `groupwise.tasks.catalog` maps `task.kind` to it.
The judges are plain functions that name the columns they want. Evaluation uses them, and the
rewards `correct` and `format` are these same functions, so a task brings its reward along.
They live at module level, so that a worker process can import them.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from groupwise.types import Problem

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Task:
    """Task("sums", train, validation, test, correct=is_right, formatted=has_tags, extract=number)

    def is_right(completion: str, answer: str) -> bool: ...    # `answer` is a column of the problem
    """

    name: str
    train: Sequence[Problem]
    validation: Sequence[Problem]
    test: Sequence[Problem]
    correct: Callable[..., Any] | None
    """Whether an answer is right (None: nobody can tell; rewards alone decide)."""
    formatted: Callable[..., Any]
    """Whether an answer has the form that the prompt asks for."""
    extract: Callable[[str], str | None]
    """The final answer in a text, in a form that equal answers share; None where there is none."""
    solve: Callable[[Problem], str | None] | None = None
    """A right final answer to a problem, for tests of rewards (None: its column `answer`)."""


def split_of(key: str) -> Split:
    """Which split a problem belongs to, by a hash of what makes it that problem.

    8 in 10 go to train. No seed enters: a problem is never in two splits, whatever generated it.
    """
    bucket = hashlib.blake2b(key.encode(), digest_size=8).digest()[0] % 10
    return "test" if bucket == 0 else "validation" if bucket == 1 else "train"
