"""Every recipe end to end with --tiny: trains, is killed, resumes exactly, evaluates, saves."""

import json
import math
import pathlib
from typing import Any

import pytest
from typer.testing import CliRunner

import groupwise.training.api as api
import groupwise.training.loop as loop
from groupwise.cli.main import app
from groupwise.config import Config
from groupwise.errors import ConfigError
from groupwise.recipe import list_recipes, load_recipe
from groupwise.tracking.run import read_rollouts, rollouts_file
from runs import timeless_metrics

NOTHING = {"cookbook_tags": -2.0, "simple_grpo_answer": -1.0, "simple_grpo_format": -1.0}
NOTHING |= {"model:tiny-preference": 0.5}
"""What an answer earns that has nothing of what is asked for, or ties; elsewhere 0."""


class Killed(Exception):
    pass


@pytest.fixture(autouse=True)
def _nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves and the report have tests of their own, and take as long as the training here."""
    monkeypatch.setattr(api, "save_curve", lambda *_: None)
    monkeypatch.setattr(api, "write_report", lambda *_: None)


def run_and_kill(config: Config, folder: pathlib.Path, patch: pytest.MonkeyPatch) -> None:
    """Train up to the second checkpoint, and die just before it is written."""
    saved: list[int] = []

    def save(state: Any, *rest: Any) -> Any:
        if saved:
            raise Killed
        saved.append(state.step)
        return api.save_checkpoint(state, *rest)

    with patch.context() as patched:
        patched.setattr(loop, "save_checkpoint", save)
        with pytest.raises(Killed):
            api.train(config, folder, quiet=True)


def test_the_neuron_recipe_is_the_gpu_reference() -> None:
    assert load_recipe("neuron") == load_recipe("qwen_gpu")  # so one of them is trained below


FAST = ("demo",)
"""Trained in the fast lane; the others are in the slow one."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST))
        for name in list_recipes()
        if name != "neuron"
    ],
)
def test_a_recipe_trains_is_killed_resumes_and_evaluates(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_recipe(name, ["tracking.tensorboard=false"], tiny=True)
    folder = tmp_path / "run"
    run_and_kill(config, folder, monkeypatch)
    first = timeless_metrics(folder)
    result = api.train(config, folder, quiet=True)
    steps = timeless_metrics(folder)
    if config.environment.kind == "none":
        assert steps == first
    else:  # which turns are computed together depends on time, and that rounds log-probs
        assert [pytest.approx(line, rel=1e-3, abs=1e-5) for line in first] == steps
    assert [line["step"] for line in steps] == [1, 2]
    assert all(math.isfinite(line["loss"]) for line in steps)
    groups = [group for step in (1, 2) for group in read_rollouts(rollouts_file(folder, step))]
    for reward in config.rewards:
        scores = [score for group in groups for score in group["scores"][reward.name]]
        assert max(scores) > NOTHING.get(reward.name, 0.0), reward.name
    assert sum(line["updates"] for line in steps) > 0 and max(s["grad_norm"] for s in steps) > 1e-3
    for moment in ("before", "after"):
        measured = result.summary[moment]
        assert measured["problems"] == 4 and math.isfinite(measured["reward"])
        assert 0 <= measured["format"] <= 1
    names = {path.name for path in result.model_folder.iterdir()}
    weights = "adapter_model.safetensors" if config.adapter else "model.safetensors"
    assert weights in names and "README.md" in names


@pytest.mark.slow
def test_the_command_says_what_it_swapped_and_its_run_can_be_evaluated(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, ["train", "cookbook", "--preset", "quick", "--tiny", "steps=1"])
    assert run.exit_code == 0, run.output
    assert "model tiny (was Qwen/Qwen2.5-3B-Instruct)" in run.output
    assert "runs/cookbook-quick-tiny: finished, test accuracy" in run.output
    target = tmp_path / "metrics.json"
    words = ["eval", "runs/cookbook-quick-tiny", "--limit", "3", "--json", str(target)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert json.loads(target.read_text())["problems"] == 3


def test_a_wrong_preset_is_an_error_of_the_user() -> None:
    result = CliRunner().invoke(app, ["train", "cookbook", "--preset", "quik"])
    assert isinstance(result.exception, ConfigError)  # which the command line turns into code 2
    assert "did you mean quick?" in str(result.exception)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("cookbook", "gpu"),
        ("cookbook", "debug"),
        ("cot_reward", "aqua_rat"),
        ("cot_deepspeed", "mathqa"),
        ("cot_reward", "rules"),
        ("llama3_8b", "int8"),
        ("llama3_8b", "cot"),
        ("cookbook", "smoke"),
        ("preference", "rules"),
        ("qwen_cpu", "truth"),
        ("simple_grpo", "stale"),
        ("best_small", "lora"),
        ("best_small", "3b"),
        ("best_small", "quarter_hour"),
    ],
)
def test_presets_train_too(name: str, preset: str, tmp_path: pathlib.Path) -> None:
    config = load_recipe(name, ["tracking.tensorboard=false"], preset=preset, tiny=True)
    result = api.train(config, tmp_path / "run", quiet=True)
    assert result.summary["status"] == "finished" and result.summary["steps"] == 2


@pytest.mark.slow
def test_check_takes_tiny_too() -> None:
    result = CliRunner().invoke(app, ["check", "simple_grpo", "--tiny"])
    assert result.exit_code == 0, result.output
    assert "a trial:" in result.output
