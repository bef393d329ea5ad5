"""The benchmark of rewards measures what it says, on answers that are half right."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from groupwise.answers.final import correct

FILE = Path(__file__).parents[2] / "benchmarks" / "rewards.py"


def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rewards_benchmark", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_answers_differ_and_about_half_are_right() -> None:
    problems, texts = benchmark().make_answers(400)
    right = sum(correct(t, p.columns["answer"]) for p, t in zip(problems, texts, strict=True))
    assert 150 < right < 250
    assert len(set(texts)) == 400 and len({problem.id for problem in problems}) == 50


def test_three_of_eight_formulas_are_right_and_each_problem_is_another() -> None:
    problems, texts = benchmark().make_formulas(32)
    right = [correct(t, p.columns["answer"]) for p, t in zip(problems, texts, strict=True)]
    assert right == ([True] * 3 + [False] * 5) * 4
    assert len({problem.columns["answer"] for problem in problems}) == 4


def test_simple_rewards_are_fast_even_on_a_busy_machine() -> None:
    [rate] = benchmark().measure(["think_answer"], 20_000).values()
    assert rate > 5_000  # on a core of its own it is ten times that
