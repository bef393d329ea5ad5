"""What generated tasks share: drawing the problems of each split.

A split's problems come from a generator keyed by the task's seed and the split's name. Each one is
kept only if a hash of the problem itself says that it belongs to the split. So the splits are
disjoint by construction, for any seeds and sizes: a training set made with one seed never holds a
test problem made with another.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from groupwise.config.tasks import ArithmeticTask, CountdownTask, GeneratedTask, GuessNumberTask
from groupwise.errors import DataError
from groupwise.tasks.base import Split, Task, split_of, tagged_task
from groupwise.types import Problem

DEFAULT_TRAIN_SIZE = 4096
MAX_MISSES = 5000
"""Draws in a row that gave nothing new, after which the space of problems counts as used up."""


def split_sizes(settings: GeneratedTask) -> dict[Split, int]:
    held_out = settings.test_size
    train = settings.train_size or DEFAULT_TRAIN_SIZE
    return {"train": train, "validation": held_out, "test": held_out}


def generated_task(
    settings: ArithmeticTask | CountdownTask | GuessNumberTask,
    draw: Callable[[Random], Problem],
    *,
    correct: Callable[..., Any],
    extract: Callable[[str], str | None],
    solve: Callable[[Problem], str | None] | None = None,
    fix: str,
) -> Task:
    """A task whose answers are asked for in <think> and <answer> tags."""
    sizes = split_sizes(settings)
    fix += f", or lower task.train_size ({sizes['train']}) and task.test_size ({sizes['test']})."
    drawn: dict[Split, tuple[Problem, ...]] = {
        split: draw_split(draw, seed=settings.seed, split=split, size=size, fix=fix)
        for split, size in sizes.items()
    }
    return tagged_task(settings.kind, drawn, correct=correct, extract=extract, solve=solve)


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
