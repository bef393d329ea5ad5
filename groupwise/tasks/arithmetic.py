"""Sums and differences such as 23+48-16, generated. The default task.

Products bind tighter than sums, as usual. groupwise.rewards.arithmetic judges the answers.
"""

from functools import partial
from random import Random

from groupwise.answers.expressions import evaluate
from groupwise.config.tasks import ArithmeticTask
from groupwise.errors import ConfigError
from groupwise.rewards.arithmetic import correct, extract
from groupwise.tasks.base import Task
from groupwise.tasks.generated import generated_task
from groupwise.types import Problem


def build(settings: ArithmeticTask) -> Task:
    if not settings.operators:
        raise ConfigError('task.operators is empty: give at least one of "+", "-", "*".')
    return generated_task(
        settings,
        partial(draw_problem, settings=settings),
        correct=correct,
        extract=extract,
        fix=f"Raise task.digits ({settings.digits}) or task.steps ({settings.steps})",
    )


def draw_problem(random: Random, settings: ArithmeticTask) -> Problem:
    """A random problem of any split: operands from 1 up, operators each as likely."""
    largest = 10**settings.digits - 1
    expression = str(random.randint(1, largest))
    for _ in range(settings.steps):
        expression += random.choice(settings.operators) + str(random.randint(1, largest))
    return problem_of(expression)


def problem_of(expression: str) -> Problem:
    """The problem that asks for an expression's value: problem_of("23+48-16")."""
    question = (
        f"What is {expression}? Work it out in <think> </think>, "
        "then give the result in <answer> </answer>."
    )
    return Problem(
        id=f"arithmetic/{expression}",
        prompt=({"role": "user", "content": question},),
        columns={"expression": expression, "answer": str(evaluate(expression).value)},
    )
