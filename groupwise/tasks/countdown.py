"""Countdown: reach a target from given numbers with + - * /, each number used exactly once.

Problems are generated backwards from a solution, so every one can be solved. Any expression with
the right value and the right numbers is right; it need not be the one the problem was made from,
and fractions on the way are fine. The order in which numbers are shown does not make a problem a
different one, so it plays no part in the splits.
"""

from functools import partial
from random import Random

from groupwise.config import CountdownTask
from groupwise.rewards.expressions import ExpressionError, evaluate
from groupwise.rewards.tags import tag_content, think_answer_format
from groupwise.tasks.base import Split, Task
from groupwise.tasks.generated import DEFAULT_TRAIN_SIZE, draw_split
from groupwise.types import Problem

MAX_TARGET = 10
"""The target is at most so many times the largest number: beyond that, only products are left."""


def build(settings: CountdownTask) -> Task:
    train_size = settings.train_size or DEFAULT_TRAIN_SIZE

    def draw(split: Split, size: int) -> tuple[Problem, ...]:
        return draw_split(
            partial(draw_problem, settings=settings),
            seed=settings.seed,
            split=split,
            size=size,
            fix=f"Raise task.largest ({settings.largest}) or task.numbers {settings.numbers}, or "
            f"lower task.train_size ({train_size}) and task.test_size ({settings.test_size}).",
        )

    return Task(
        name="countdown",
        train=draw("train", train_size),
        validation=draw("validation", settings.test_size),
        test=draw("test", settings.test_size),
        correct=correct,
        formatted=formatted,
        extract=extract,
        solve=solve,
    )


def draw_problem(random: Random, settings: CountdownTask) -> Problem:
    """A random problem of any split."""
    numbers, target, _ = draw_solved(random, settings)
    return problem_of(numbers, target, settings.prefill)


def draw_solved(random: Random, settings: CountdownTask) -> tuple[list[int], int, str]:
    """Numbers, a target from 1 up, and an expression that reaches it.

    The pool starts as the numbers; two of its members are combined at a time until one is left.
    """
    while True:
        count = random.randint(*settings.numbers)
        numbers = [random.randint(1, settings.largest) for _ in range(count)]
        pool = [(number, str(number)) for number in numbers]
        while len(pool) > 1:
            random.shuffle(pool)
            pool.append(_combine(random, pool.pop(), pool.pop()))
        target, solution = pool[0]
        if 1 <= target <= MAX_TARGET * settings.largest:
            return numbers, target, _without_outer_parentheses(solution)


def _combine(random: Random, left: tuple[int, str], right: tuple[int, str]) -> tuple[int, str]:
    a, b = left[0], right[0]
    values = {"+": a + b, "-": a - b, "*": a * b}
    if b != 0 and a % b == 0:
        values["/"] = a // b
    operator = random.choice(list(values))
    return values[operator], f"({left[1]}{operator}{right[1]})"


def _without_outer_parentheses(expression: str) -> str:
    return expression.removeprefix("(").removesuffix(")")


def problem_of(numbers: list[int], target: int, prefill: str = "") -> Problem:
    """The problem that asks for a target: problem_of([3, 5, 8], 16)."""
    question = (
        f"Make {target} from {', '.join(map(str, numbers))}, each used once, with + - * /. "
        "Work it out in <think> </think>, then give the expression in <answer> </answer>."
    )
    return Problem(
        id=f"countdown/{','.join(map(str, sorted(numbers)))}={target}",
        prompt=({"role": "user", "content": question},),
        columns={"numbers": numbers, "target": target},
        prefill=prefill,
    )


def solve(problem: Problem) -> str | None:
    """An expression that reaches the target through whole numbers, by trying all of them.

    Sets of the numbers, as bits, and what can be made of each: small sets first.
    """
    numbers, target = problem.columns["numbers"], problem.columns["target"]
    full = (1 << len(numbers)) - 1
    made: dict[int, dict[int, str]] = {1 << i: {n: str(n)} for i, n in enumerate(numbers)}
    for whole in sorted(range(1, full + 1), key=int.bit_count):
        values = made.setdefault(whole, {})
        part = (whole - 1) & whole
        while part:
            for a, left in made[part].items():
                for b, right in made[whole ^ part].items():
                    for value, operator in ((a + b, "+"), (a - b, "-"), (a * b, "*")):
                        values.setdefault(value, f"({left}{operator}{right})")
                    if b and a % b == 0:
                        values.setdefault(a // b, f"({left}/{right})")
            if whole == full and target in values:
                return _without_outer_parentheses(values[target])
            part = (part - 1) & whole
    return None


def correct(completion: str, numbers: list[int], target: int) -> bool:
    """Whether the answer's expression has the target's value and uses each number exactly once."""
    expression = extract(completion)
    if expression is None:
        return False
    evaluated = evaluate(expression)
    return evaluated.value == target and sorted(evaluated.numbers) == sorted(numbers)


def formatted(completion: str) -> bool:
    """Whether the text is `<think>…</think><answer>…</answer>` and nothing else."""
    return think_answer_format(completion)


def extract(completion: str) -> str | None:
    """The expression in the only `<answer>` pair that ends the text, without spaces.

    None where it is not an expression, or where it has no value.
    """
    content = tag_content(completion, "answer")
    if content is None or not completion.rstrip().endswith("</answer>"):
        return None
    try:
        evaluate(content)
    except ExpressionError:
        return None
    return "".join(content.split())
