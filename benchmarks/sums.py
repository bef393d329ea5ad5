"""Three-term sums as plain text with four worked lines before them, for learning.py.

    7 + 2 + 5 = 14
    ...
    4 + 9 + 3 =

The model goes on writing. What stands on the first line is its answer.
"""

from random import Random

import groupwise
from groupwise.tasks.base import SPLITS, Split, Task, split_of
from groupwise.types import Problem

SHOTS = ((7, 2, 5), (1, 8, 6), (9, 4, 4), (3, 6, 2))


@groupwise.task
def task() -> Task:
    terms = range(1, 10)
    sums = [(a, b, c) for a in terms for b in terms for c in terms if (a, b, c) not in SHOTS]
    Random(0).shuffle(sums)
    problems: dict[Split, list[Problem]] = {split: [] for split in SPLITS}
    for numbers in sums:
        problem = _problem(numbers)
        problems[split_of(problem.id)].append(problem)
    return Task(
        "sums",
        problems["train"],
        correct,
        validation=problems["validation"],
        test=problems["test"],
        formatted=formatted,
        extract=first_line,
    )


def _problem(numbers: tuple[int, ...]) -> Problem:
    shots = "".join(f"{_left(shot)} = {sum(shot)}\n" for shot in SHOTS)
    answer = {"answer": str(sum(numbers))}
    return Problem(f"sums/{_left(numbers)}", f"{shots}{_left(numbers)} =", answer)


def _left(numbers: tuple[int, ...]) -> str:
    return " + ".join(map(str, numbers))


def first_line(completion: str) -> str:
    return completion.split("\n", 1)[0].strip()


def correct(completion: str, answer: str) -> bool:
    return first_line(completion) == answer


def formatted(completion: str) -> bool:
    """Whether the first line is a number, and there is a second."""
    return "\n" in completion and first_line(completion).isdecimal()
