"""Sums and differences such as 23+48-16, generated. The default task.

Products bind tighter than sums, as usual. An answer is right when the text ends with its only
`<answer>` pair and that holds the exact integer and nothing else: no words, no unit, no separator.
"""

from functools import partial
from random import Random

from groupwise.config import ArithmeticTask
from groupwise.errors import ConfigError
from groupwise.rewards.expressions import evaluate
from groupwise.rewards.tags import tag_content, think_answer_format
from groupwise.tasks.base import Split, Task
from groupwise.tasks.generated import DEFAULT_TRAIN_SIZE, draw_split
from groupwise.types import Problem

MAX_ANSWER_CHARACTERS = 80
"""The largest settings need 54 digits; longer text is not worth parsing."""


def build(settings: ArithmeticTask) -> Task:
    if not settings.operators:
        raise ConfigError('task.operators is empty: give at least one of "+", "-", "*".')
    train_size = settings.train_size or DEFAULT_TRAIN_SIZE

    def draw(split: Split, size: int) -> tuple[Problem, ...]:
        return draw_split(
            partial(draw_problem, settings=settings),
            seed=settings.seed,
            split=split,
            size=size,
            fix=f"Raise task.digits ({settings.digits}) or task.steps ({settings.steps}), or lower "
            f"task.train_size ({train_size}) and task.test_size ({settings.test_size}).",
        )

    return Task(
        name="arithmetic",
        train=draw("train", train_size),
        validation=draw("validation", settings.test_size),
        test=draw("test", settings.test_size),
        correct=correct,
        formatted=formatted,
        extract=extract,
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


def correct(completion: str, answer: str) -> bool:
    """Whether the text ends with the exact integer in its only `<answer>` pair."""
    return extract(completion) == answer


def formatted(completion: str) -> bool:
    """Whether the text is `<think>…</think><answer>…</answer>` and nothing else."""
    return think_answer_format(completion)


def extract(completion: str) -> str | None:
    """The integer in the only `<answer>` pair, if that ends the text: " 055 " gives "55"."""
    content = tag_content(completion, "answer")
    if content is None or not completion.rstrip().endswith("</answer>"):
        return None
    content = content.strip()
    digits = content.removeprefix("-") if content.startswith("-") else content.removeprefix("+")
    if len(content) > MAX_ANSWER_CHARACTERS or not (digits.isascii() and digits.isdigit()):
        return None
    return str(int(content))
