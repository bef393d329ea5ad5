"""What TRL's examples have runs unchanged, in processes of its own."""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from environments.scripted import END, LIMITS, ScriptedEngine
from environments.templates import tokenizer_of
from environments.trl_examples import (
    MakesItsOwn,
    NoReward,
    WordleEnv,
    query,
    reward_func,
    short_func,
)
from groupwise.config.environment import TrlEnvironmentSettings
from groupwise.config.tasks import EnvironmentTask
from groupwise.environments.base import EnvironmentFactory
from groupwise.environments.groups import Episodes
from groupwise.environments.processes import in_processes
from groupwise.environments.tools import tools_environment
from groupwise.environments.trl import trl_environment
from groupwise.errors import ConfigError
from groupwise.load import load_parts
from groupwise.recipe import load_recipe
from groupwise.rollout.engine import run_sync
from groupwise.tasks.catalog import build_task
from groupwise.training.collect import collect_step
from groupwise.types import Episode, Group, Problem, Sampling

HERE = "environments.trl_examples"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@contextmanager
def running(factory: EnvironmentFactory) -> Iterator[Episodes]:
    runner = Episodes(in_processes(factory), tokenizer_of("tiny"), (END,), LIMITS)
    yield runner
    runner.close()


def play(runner: Episodes, write: Any, count: int = 1, **row: Any) -> Group:
    problem = Problem("p", ({"role": "user", "content": "Go."},), row)
    samplings = [Sampling(2000)] * count
    keys = tuple(range(count))
    return asyncio.run(runner.group(problem, ScriptedEngine(write), keys, samplings, 5))


def in_turn(*turns: str) -> Any:
    return lambda prompt: turns[prompt.count("<|assistant|>") - 1]


def episode(group: Group) -> Episode:
    assert group.completions[0].episode is not None
    return group.completions[0].episode


def replies(group: Group) -> list[str]:
    return [m["content"] for m in episode(group).messages if m["role"] == "tool"]


def test_a_tool_with_a_database_and_a_time_limit() -> None:
    turns = [call("query", sql_command="select * from genes where 1"), "*Yes*"]
    with running(tools_environment([query])) as runner:
        assert replies(play(runner, in_turn(*turns))) == ['[["JNKK"]]']
        wrong = replies(play(runner, in_turn(call("query", sql_command="select"), "*No*")))
    assert wrong[0].startswith("error: OperationalError")


def test_a_game_whose_reward_function_asks_for_environments() -> None:
    turns = [call("guess", guess="[crate]"), call("guess", guess="[crane]"), "Done."]
    with running(trl_environment(WordleEnv, rewards=[reward_func, short_func])) as runner:
        won = play(runner, in_turn(*turns), word="crane")
        lost = play(runner, in_turn(turns[0], "Done."), word="crane")
        over = play(runner, in_turn(turns[1], turns[1], "Done."), word="crane")
    assert replies(won) == ["G G G X G", "G G G G G"]
    assert episode(won).scores == {"reward_func": 1.0, "short_func": -0.2}
    assert episode(lost).scores == {"reward_func": 0.8, "short_func": None}
    assert episode(lost).reward == 0.8
    assert replies(over)[1] == "error: ValueError: Game over."


def test_data_and_reward_of_the_environment() -> None:
    """TRL's `get_reward` and a run without a dataset: episodes of a group begin alike."""

    def obey(prompt: str) -> str:
        return (
            "Done."
            if "heard" in prompt
            else call("say", number=int(prompt[prompt.index("Say ") + 4 : prompt.index(".<")]))
        )

    factory = trl_environment(MakesItsOwn)
    assert factory.name == "MakesItsOwn" and factory.scores
    with running(factory) as runner:
        group = play(runner, lambda prompt: "No.", count=3)
        prompt = tokenizer_of("tiny").decode(list(group.prompt_tokens))
        assert re.search(r"Say \d+\.", prompt), "all three were asked for the same number"
        assert [c.episode.reward for c in group.completions if c.episode] == [0.0] * 3
        right = play(runner, obey)
    assert episode(right).scores == {"MakesItsOwn": 1.0}


def test_the_task_of_such_an_environment_has_no_data() -> None:
    task = build_task(EnvironmentTask(train_size=5, test_size=2, prompt="Listen. "))
    assert [len(split) for split in (task.train, task.validation, task.test)] == [5, 2, 2]
    assert len({p.id for p in (*task.train, *task.validation, *task.test)}) == 9
    assert task.train[0].prompt == ({"role": "user", "content": "Listen. "},)
    overrides = [
        "task={kind: environment, train_size: 8, test_size: 2}",
        "rewards=[]",
        f"environment.factory={HERE}:MakesItsOwn",
        "batch.prompts=2",
        "batch.group_size=2",
        "rollout.max_prompt_tokens=4096",
    ]
    with load_parts(load_recipe("demo", overrides)) as parts:
        groups = run_sync(collect_step(parts, 0, 0)).groups
        prompts = [parts.policy.tokenizer.decode(list(g.prompt_tokens)) for g in groups]
    numbers = [re.findall(r"Say (\d+)\.", prompt) for prompt in prompts]
    assert numbers[0] and numbers[1] and numbers[0] != numbers[1], "a number for each group"
    assert all(group.scores["MakesItsOwn"] == (0.0, 0.0) for group in groups)


def test_a_recipe_names_several_and_the_row_chooses() -> None:
    overrides = [
        f"environment.factories={{own: '{HERE}:MakesItsOwn', none: '{HERE}:NoReward'}}",
        f"environment.rewards=[{HERE}:reward_func]",
    ]
    settings = load_recipe("demo", overrides).environment
    assert isinstance(settings, TrlEnvironmentSettings) and set(settings.factories) == {
        "own",
        "none",
    }
    with pytest.raises(ConfigError, match="either factory"):
        load_recipe("demo", [*overrides, f"environment.factory={HERE}:NoReward"])


def test_only_the_chosen_environment_s_tools_are_shown() -> None:
    factory = trl_environment({"own": MakesItsOwn, "none": NoReward})
    with running(factory) as runner:
        group = play(
            runner, in_turn(call("look") + call("say", number=1), "Done."), environment="none"
        )
    assert replies(group)[0] == "nothing" and "there is no tool 'say'" in replies(group)[1]
    assert episode(group).reward is None, "it has no reward of its own, which is not 0"
