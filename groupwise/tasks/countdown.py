"""Countdown: reach a target from given numbers with + - * /, each number used exactly once.

Problems are generated backwards from a solution, so every one can be solved; or they are read from
data with the columns of Jiayi-Pan/Countdown-Tasks-3to4, nums and target. Any expression with
the right value and the right numbers is right; it need not be the one the problem was made from,
and fractions on the way are fine. The order in which numbers are shown does not make a problem a
different one, so it plays no part in the splits: a generated problem is in the split that it would
be in as a row of data.
"""

from functools import partial
from random import Random

from groupwise.config.tasks import CountdownTask
from groupwise.errors import DataError, quoted
from groupwise.rewards.countdown import correct, extract
from groupwise.tasks.base import SPLITS, Split, Task, cut, split_of, tagged_task
from groupwise.tasks.files import read_file_folder_or_hub
from groupwise.tasks.generated import generated_task
from groupwise.tasks.jsonl import Row
from groupwise.types import Problem

MAX_TARGET = 10
"""The target is at most so many times the largest number: beyond that, only products are left."""


def build(settings: CountdownTask) -> Task:
    if settings.path is not None:
        return _from_data(settings, settings.path)
    return generated_task(
        settings,
        partial(draw_problem, settings=settings),
        correct=correct,
        extract=extract,
        solve=solve,
        fix=f"Raise task.largest ({settings.largest}) or task.numbers {settings.numbers}",
    )


def _from_data(settings: CountdownTask, path: str) -> Task:
    """Given splits as they are; missing ones out of train, by a hash of the problem."""
    given = read_file_folder_or_hub(path)
    if "train" not in given:
        raise DataError(f"task.path={path} has no training data")
    drawn: dict[Split, dict[str, Problem]] = {split: {} for split in SPLITS}
    for split, rows in given.items():
        for row in rows:
            problem = _problem_of_row(row, settings)
            place = split_of(problem.id) if split == "train" else split
            drawn[place if place not in given else split][problem.id] = problem
    for split in SPLITS:
        if not drawn[split]:
            raise DataError(f"task.path={path} has too few problems to fill the {split} split")
    splits = cut({split: list(problems.values()) for split, problems in drawn.items()}, settings)
    return tagged_task(settings.kind, splits, correct=correct, extract=extract, solve=solve)


def _problem_of_row(row: Row, settings: CountdownTask) -> Problem:
    numbers, target = row.columns.get("nums"), row.columns.get("target")
    whole = isinstance(numbers, list) and all(type(n) is int and 0 < n < 10**6 for n in numbers)
    if not whole or not 2 <= len(numbers or []) <= 6 or type(target) is not int:
        raise DataError(
            f"{row.location}: countdown rows have the columns nums, two to six whole numbers from "
            f"1 up, and target, a whole number; not {quoted(repr(numbers), 60)} and "
            f"{quoted(repr(target), 60)}"
        )
    assert isinstance(numbers, list)
    return problem_of(numbers, target, settings.prefill)


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
