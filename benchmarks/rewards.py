"""How many answers a second the rewards score, on one core: python benchmarks/rewards.py

Through the scorer as training uses it: a worker process, per-answer time limits, failures that name
their answer. Both processes are pinned to one core where the system can do that. No two answers are
the same, though final answers repeat, as they do in a group. The last row, `formulas`, is the
`answer` reward where truths are formulas, by one process and by as many as there are cores.
"""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from random import Random

from rich.console import Console
from rich.table import Table

from groupwise.rewards.base import Reward
from groupwise.rewards.catalog import resolve
from groupwise.rewards.scorer import Scorer
from groupwise.types import Problem

SIMPLE = ("think_answer", "tags", "simple_grpo_format", "lm_book_format", "cookbook_tags")
"""What counts as simple: one look at the text."""

OTHERS = (
    *("answer", "cookbook_answer", "lm_book_answer", "simple_grpo_answer", "equation"),
    *("heuristic", "reasoned", "cot_bonus", "step_clarity", "repetition", "language"),
)


def make_answers(count: int, seed: int = 0) -> tuple[list[Problem], list[str]]:
    """Answers of some 300 characters, half of them right, eight to a problem."""
    random = Random(seed)
    problems: list[Problem] = []
    texts: list[str] = []
    for index in range(count):
        if index % 8 == 0:
            numbers = [random.randint(1, 99) for _ in range(3)]
            columns = {"answer": str(sum(numbers)), "numbers": numbers, "target": sum(numbers)}
            problems.append(Problem(f"{index}", f"Add {numbers}.", columns))
        else:
            problems.append(problems[-1])
        a, b, c = problems[-1].columns["numbers"]
        given = a + b + c + random.randint(0, 1)
        texts.append(
            f"<think>Step 1: First we add {a} and {b}, so {a} + {b} = {a + b}.\n"
            f"Step 2: Then we add {c} to that, because all count: {a + b} + {c} = {given}.\n"
            f"Check {random.randint(0, 10**6)}: nothing is left out, therefore we are done here "
            f"and the result is {given}.</think>\n<answer>{given}</answer>"
        )
    return problems, texts


def make_formulas(count: int, seed: int = 0) -> tuple[list[Problem], list[str]]:
    """Eight answers to a problem, of which three are right in another form and five are wrong, two
    of them in the same way."""
    random = Random(seed)
    problems: list[Problem] = []
    texts: list[str] = []
    for index in range(0, count, 8):
        a, b = random.randint(2, 99), random.randint(2, 99)
        problems += [Problem(f"{index}", "Expand.", {"answer": f"x^2+{a + b}x+{a * b}"})] * 8
        wrong = [rf"x^2+{a + b + n}x+{a * b}" for n in (1, 1, 2, 3, 4)]
        texts += [rf"So it is \boxed{{{text}}}." for text in [rf"(x+{a})(x+{b})"] * 3 + wrong]
    return problems[:count], texts[:count]


def measure(names: Sequence[str], count: int) -> Mapping[str, float]:
    """Scores per second of each reward alone, the best of three; loading is not counted."""
    problems, texts = make_answers(count)
    rates = {}
    for name in names:
        with Scorer([Reward(name, resolve(name))], timeout=30.0, on_error="stop") as scorer:
            scorer.score(problems[:8], texts[:8])
            seconds = []
            for _ in range(3):
                start = time.perf_counter()
                scorer.score(problems, texts)
                seconds.append(time.perf_counter() - start)
            rates[name] = count / min(seconds)
    return rates


def measure_formulas(processes: int, count: int) -> float:
    """Scores per second of formulas, once: a second time they would be known."""
    problems, texts = make_formulas(count + 8 * processes)
    reward, warm = Reward("answer", resolve("answer")), 8 * processes
    with Scorer([reward], timeout=30.0, on_error="stop", processes=processes) as scorer:
        scorer.score(problems[:warm], texts[:warm])
        start = time.perf_counter()
        scorer.score(problems[warm:], texts[warm:])
        return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=20_000)
    parser.add_argument("--formulas", type=int, default=1000)
    arguments = parser.parse_args()
    pinned = hasattr(os, "sched_setaffinity")
    cores = len(os.sched_getaffinity(0)) if pinned else os.cpu_count() or 1
    several = measure_formulas(cores, arguments.formulas)
    if pinned:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rates = measure((*SIMPLE, *OTHERS), arguments.answers)
    table = Table(title=f"scores per second on one core ({arguments.answers} answers)")
    table.add_column("reward")
    table.add_column("scores / s", justify="right")
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", end_section=name in (SIMPLE[-1], OTHERS[-1]))
    table.add_row("formulas", f"{measure_formulas(1, arguments.formulas):,.0f}")
    table.add_row(f"formulas, {cores} processes on {cores} cores", f"{several:,.0f}")
    Console().print(table)
    slowest = min(SIMPLE, key=lambda name: rates[name])
    print(f"simple scores per second: {rates[slowest]:.0f} (slowest: {slowest})")


if __name__ == "__main__":
    main()
