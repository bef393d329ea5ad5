"""What generated tasks share: drawing the problems of a split.

A split's problems come from a generator keyed by the task's seed and the split's name. Each one is
kept only if a hash of the problem itself says that it belongs to the split. So the splits are
disjoint by construction, for any seeds and sizes: a training set made with one seed never holds a
test problem made with another.
"""

from collections.abc import Callable
from random import Random

from groupwise.errors import DataError
from groupwise.tasks.base import Split, split_of
from groupwise.types import Problem

DEFAULT_TRAIN_SIZE = 4096
MAX_MISSES = 5000
"""Draws in a row that gave nothing new, after which the space of problems counts as used up."""


def draw_split(
    draw: Callable[[Random], Problem], *, seed: int, split: Split, size: int, fix: str
) -> tuple[Problem, ...]:
    """`size` different problems of a split; DataError with the `fix` if there are not so many.

    The problem's id is its identity: equal problems must have equal ids.
    """
    random = Random(f"{seed}/{split}")
    problems: dict[str, Problem] = {}
    misses = 0
    while len(problems) < size:
        problem = draw(random)
        if split_of(problem.id) == split and problem.id not in problems:
            problems[problem.id] = problem
            misses = 0
        else:
            misses += 1
        if misses > MAX_MISSES:
            raise DataError(
                f"{size} different {split} problems were asked for, but only {len(problems)} "
                f"could be generated. {fix}"
            )
    return tuple(problems.values())
