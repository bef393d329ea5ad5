"""Guess a number between two bounds, with the environment `guess_number`. Generated.

The prompt says the bounds and not the number, so problems differ in what the environment knows.
The guess of the last turn is judged as an arithmetic answer is: groupwise.rewards.arithmetic.
"""

from functools import partial
from random import Random

from groupwise.config.tasks import GuessNumberTask
from groupwise.rewards.arithmetic import correct, extract
from groupwise.tasks.base import Task
from groupwise.tasks.generated import generated_task
from groupwise.types import Problem

LARGEST = 99


def build(settings: GuessNumberTask) -> Task:
    return generated_task(
        settings,
        partial(draw_problem, settings=settings),
        correct=correct,
        extract=extract,
        fix=f"Lower task.span ({settings.span})",
    )


def draw_problem(random: Random, settings: GuessNumberTask) -> Problem:
    """A random problem of any split: bounds `span` apart, and a number between them."""
    low = random.randint(0, LARGEST - settings.span)
    return problem_of(low, low + settings.span, random.randint(low + 1, low + settings.span - 1))


def problem_of(low: int, high: int, number: int) -> Problem:
    """The problem whose answer is a number between two others: problem_of(20, 84, 37)."""
    question = (
        f"Guess my number between {low} and {high}. I say higher or lower. "
        "Think in <think> </think>, then give your guess in <answer> </answer>."
    )
    return Problem(
        id=f"guess_number/{low}-{high}/{number}",
        prompt=({"role": "user", "content": question},),
        columns={"low": low, "high": high, "answer": str(number)},
    )
