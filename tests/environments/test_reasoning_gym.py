"""reasoning-gym's problems with further tries, and the settings of environments that judge."""

import sys
from pathlib import Path
from typing import Any

import pytest

from environments.scripted import END, LIMITS, ScriptedEngine, play
from environments.templates import tokenizer_of
from groupwise.config.tasks import GymTask, VerifiersTask
from groupwise.environments.groups import Episodes
from groupwise.environments.reasoning_gym import reasoning_gym_environment
from groupwise.errors import ConfigError, DataError
from groupwise.recipe import load_recipe, parse
from groupwise.tasks.catalog import build_task
from groupwise.tasks.verifiers import verifiers_task
from groupwise.types import Episode, Problem


def tried(problem: Problem, *turns: str, tokens: int = 400) -> Episode:
    factory = reasoning_gym_environment("Wrong. Again.")
    runner = Episodes(factory, tokenizer_of("tiny"), (END,), LIMITS)
    engine = ScriptedEngine(
        lambda prompt: turns[min(prompt.count("<|assistant|>"), len(turns)) - 1]
    )
    (answer,) = play(engine, runner, problem=problem, tokens=tokens).completions
    assert answer.episode is not None
    return answer.episode


def test_a_wrong_answer_is_told_so_and_the_last_one_counts() -> None:
    pytest.importorskip("reasoning_gym")
    options = {"min_numbers": 3, "max_numbers": 3}
    task = build_task(GymTask(name="countdown", train_size=4, test_size=1, options=options))
    problem = task.train[0]
    right = f"<answer>{problem.columns['answer']}</answer>"
    corrected = tried(problem, "I do not know.", "<answer>1+1</answer>", right)
    assert [m["content"] for m in corrected.messages if m["role"] == "user"] == [
        "There is no answer in <answer> </answer>. Wrong. Again.",
        "Wrong. Again.",
    ]
    assert corrected.reward == 1.0 and len(corrected.turns) == 3
    assert tried(problem, right).turns == corrected.turns[2:], "right at once ends it"
    never = tried(problem, "<answer>1+1</answer>")
    assert len(never.turns) == LIMITS.max_turns
    assert never.reward == pytest.approx(0.05), "reasoning-gym's own partial credit"
    cut = tried(problem, "<answer>1+1</answer>", "so it must be that " * 20, tokens=20)
    assert cut.reward == 0.0, "an answer that was cut off is the last one"


def test_other_problems_are_refused() -> None:
    with pytest.raises(DataError, match=r"use task=gym:NAME"):
        tried(Problem("p", "3+4=", {"answer": "7"}), "7")
    with pytest.raises(ConfigError, match=r"needs problems of reasoning-gym: task=gym:NAME"):
        parse({}, ["environment=reasoning_gym"])


def test_environments_that_judge_need_no_other_reward() -> None:
    config = parse({}, ["task=gym:countdown", "environment=reasoning_gym"])
    assert config.rewards == () and config.environment.kind == "reasoning_gym"
    config = parse({}, ["task=gym:countdown", "environment=reasoning_gym", "rewards=[format]"])
    assert [reward.name for reward in config.rewards] == ["format"]


def test_an_environment_of_verifiers_brings_its_problems() -> None:
    config = parse({}, ["environment.env=wordle", "environment.args={seed: 3}", "task.test_size=7"])
    assert config.environment.kind == "verifiers" and config.rewards == ()
    assert config.task == VerifiersTask(env="wordle", args={"seed": 3}, test_size=7)
    again: dict[str, Any] = config.model_dump()
    assert parse(again) == config
    with pytest.raises(ConfigError, match="brings its own problems"):
        parse({"task": "countdown"}, ["environment.env=wordle"])
    with pytest.raises(ConfigError, match="name that"):
        parse({"task": {"kind": "verifiers", "env": "wordle"}})


def test_recipes_that_name_environments_of_verifiers_must_be_trusted(tmp_path: Path) -> None:
    recipe = tmp_path / "wordle.yaml"
    recipe.write_text("environment: {kind: verifiers, env: wordle, python: ./python}\n")
    with pytest.raises(ConfigError, match=r"environment.env=wordle, environment.python=./python"):
        load_recipe(str(recipe))
    assert load_recipe(str(recipe), trust_code=True).task.kind == "verifiers"


def test_an_interpreter_without_verifiers_is_told_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be run"):
        verifiers_task("wordle", {}, "/no/such/python")
    bare = tmp_path / "python"  # without site-packages there is no verifiers
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(ConfigError, match=r"has no package verifiers: .*environment\.python="):
        verifiers_task("wordle", {}, str(bare))
