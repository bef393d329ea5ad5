"""The one-file example stays honest: the same seed gives the package's losses for three steps."""

import importlib.util
import pathlib
import sys

import pytest

from groupwise.recipe import parse
from groupwise.tasks.base import Task
from groupwise.tracking.run import read_metrics
from groupwise.training.api import train
from groupwise.types import Problem

PATH = pathlib.Path(__file__).parents[2] / "examples" / "grpo_in_one_file.py"
SPEC = importlib.util.spec_from_file_location("grpo_in_one_file", PATH)
assert SPEC is not None and SPEC.loader is not None
example = importlib.util.module_from_spec(SPEC)
sys.modules["grpo_in_one_file"] = example
SPEC.loader.exec_module(example)


@pytest.mark.slow
def test_three_steps_have_the_losses_of_the_package(tmp_path: pathlib.Path) -> None:
    settings = example.Settings(steps=3, prompts=6, group_size=4, epochs=2)
    expected = example.train(settings)
    problems = tuple(
        Problem(p.id, ({"role": "user", "content": p.question},), {"answer": p.answer})
        for p in example.make_problems(256, settings.seed)
    )
    held_out = problems[:4]
    task = Task(
        "sums",
        problems,
        example.correct,
        validation=held_out,
        test=held_out,
        formatted=example.well_formed,
    )
    config = parse(
        {
            "steps": 3,
            "device": "cpu",
            "rewards": ["correct", {"name": "format", "weight": 0.2}],
            "batch": {"prompts": 6, "group_size": 4, "epochs": 2},
            "rollout": {"max_prompt_tokens": 64, "max_completion_tokens": settings.max_tokens},
            "algorithm": {"kl_weight": settings.kl_weight},
            "optimizer": {"lr": settings.lr, "clip_norm": settings.clip_norm},
            "eval": {"problems": 4, "k": 1},
            "tracking": {"tensorboard": False},
        }
    )
    train(config, tmp_path / "run", task=task, quiet=True)
    found = read_metrics(tmp_path / "run")
    assert len(found) == len(expected) == 3
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["reward"] == pytest.approx(theirs["reward"])
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
    assert any(abs(line["loss"]) > 1e-4 for line in found)


def test_it_imports_torch_and_transformers_only_and_is_short() -> None:
    text = PATH.read_text()
    assert text.count("\n") < 250
    assert "import groupwise" not in text and "from groupwise" not in text
