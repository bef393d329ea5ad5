"""`groupwise reward bench` on our recipes: no wrong answer earns more than a right one.

Rewards that never see the truth cannot do better than a tie; those recipes are named here. Learned
rewards are left to the bench of whoever fits them: what stands in for them in a tiny run has random
weights. Their recipes are tried with the preset that uses rules.
"""

from functools import cache

import pytest
from typer.testing import CliRunner

from groupwise.cli.main import app
from groupwise.load import find_rewards, judges
from groupwise.recipe import list_recipes, load_recipe
from groupwise.recipe.tiny import SAMPLES
from groupwise.rewards.bench import RewardReport, run_bench, solve_problems
from groupwise.rewards.scorer import Scorer
from groupwise.tasks.catalog import build_task

BLIND = ("qwen_gpu", "qwen_cpu")
"""Their reward is `heuristic`, by looks alone: a wrong answer that looks right earns the same."""
LEARNED = ("neural_reward",)
"""The reward is a model and nothing else, on prompts without a right answer."""
TWINS = ("neuron", "cot_deepspeed")
"""The same rewards on the same task as qwen_gpu and cot_reward, which a test holds."""
BY_RULES = {"cot_reward": "rules", "cot_deepspeed": "rules", "preference": "rules"}


OWN_TAGS = ("cookbook", "lm_book")
"""Whose tiny runs are in the form of the embedded model: tried in their own."""


@cache
def bench(name: str, preset: str | None = None) -> RewardReport:
    config = load_recipe(name, preset=preset or BY_RULES.get(name), tiny=True)
    if name in OWN_TAGS:
        data = [f"task.path={SAMPLES / 'gsm8k'}", "task.validation_size=4"]
        config = load_recipe(name, data)
    task = build_task(config.task)
    own = Scorer(find_rewards(config, task), 30.0, "skip")
    with own, Scorer(judges(task), 30.0, "stop") as judge:
        return run_bench(solve_problems(task.train, task.solve, count=2), own, judge)


@pytest.mark.parametrize("name", [n for n in list_recipes() if n not in (*LEARNED, *TWINS)])
def test_no_wrong_answer_beats_a_right_one(name: str) -> None:
    report = bench(name)
    report.check()
    assert report.problems == 2
    tied = {line.kind for line in report.lines if line.label == "wrong" and line.ties}
    assert ("wrong" in tied) == (name in BLIND)


@pytest.mark.parametrize(
    ("name", "twin"), [("neuron", "qwen_gpu"), ("cot_deepspeed", "cot_reward")]
)
def test_twins_have_the_same_rewards(name: str, twin: str) -> None:
    ours, theirs = load_recipe(name), load_recipe(twin)
    assert (ours.rewards, ours.task, ours.batch) == (theirs.rewards, theirs.task, theirs.batch)


@pytest.mark.parametrize(
    ("name", "form"),
    [("cookbook", "working_out"), ("lm_book", "reasoning"), ("simple_grpo", "think")],
)
def test_the_form_that_pays_most_is_the_one_asked_for(name: str, form: str) -> None:
    assert bench(name).form == form


def test_the_truth_instead_of_looks_leaves_no_tie() -> None:
    report = bench("qwen_gpu", "truth")
    assert not [line for line in report.lines if line.label == "wrong" and line.ties]


def test_the_command_takes_tiny_and_presets() -> None:
    words = ["reward", "bench", "preference", "--preset", "rules", "--tiny"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "no wrong answer beats a right one" in result.output
    assert "rewards of preference rules tiny" in result.output
