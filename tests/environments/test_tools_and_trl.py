"""Functions and TRL's environments, run unchanged."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from environments.scripted import END, LIMITS, ScriptedEngine, play
from environments.templates import tokenizer_of
from groupwise.environments.base import EnvironmentFactory
from groupwise.environments.groups import Episodes
from groupwise.environments.tools import tools_environment
from groupwise.environments.trl import trl_environment
from groupwise.errors import ConfigError, DataError
from groupwise.types import Episode, Problem

PROBLEM = Problem("p", ({"role": "user", "content": "Count."},), {"target": 3})


def calling(*turns: str) -> Any:
    """An engine that writes these turns in order."""
    return ScriptedEngine(lambda prompt: turns[prompt.count("<|assistant|>") - 1])


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def episode_of(
    factory: EnvironmentFactory, *turns: str, problem: Problem = PROBLEM, seconds: float = 5.0
) -> tuple[Episode, str]:
    limits = replace(LIMITS, step_seconds=seconds)
    runner = Episodes(factory, tokenizer_of("tiny"), (END,), limits)
    engine = calling(*turns)
    (answer,) = play(engine, runner, problem=problem, tokens=2000).completions
    assert answer.episode is not None
    return answer.episode, tokenizer_of("tiny").decode(list(engine.requests[0].prompt_tokens))


def add(a: int, b: int) -> int:
    """Adds two integers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


async def later(text: str) -> str:
    """Says it later.

    Args:
        text: What.
    """
    await asyncio.sleep(0)
    return f"later {text}"


def fails(a: int) -> int:
    """Fails.

    Args:
        a: Anything.
    """
    raise KeyError(a)


def replies(episode: Episode) -> list[str]:
    return [m["content"] for m in episode.messages if m["role"] == "tool"]


def test_functions_are_called_and_the_model_reads_their_results() -> None:
    factory = tools_environment([add, later])
    episode, prompt = episode_of(
        factory, f"{call('add', a=3, b=4)}{call('later', text='x')}", "It is 7."
    )
    assert replies(episode) == ["7", "later x"]
    assert episode.calls == 2 and episode.malformed == 0 and not episode.error
    assert episode.messages[-1] == {"role": "assistant", "content": "It is 7."}
    assert '"name": "add"' in prompt and '"name": "later"' in prompt


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (call("sub", a=1), "there is no tool 'sub'; there are: add, fails"),
        (call("add", a=1), "TypeError"),
        (call("add", a=1, c=2), "TypeError"),
        (call("fails", a=1), "KeyError: 1"),
        ("<tool_call>{</tool_call>", "not valid JSON"),
        ("<tool_call>add(1, 2)</tool_call>", "not valid JSON"),
    ],
)
def test_the_model_is_told_what_was_wrong_with_its_call(written: str, said: str) -> None:
    episode, _ = episode_of(tools_environment([add, fails]), written, "Never mind.")
    assert said in replies(episode)[0] and replies(episode)[0].startswith("error: ")
    assert not episode.error, "the episode goes on"
    assert len(episode.turns) == 2
    assert episode.malformed == (written[11] != "{" or written[12] == "<")


class Counter:
    """As TRL's documentation has them."""

    def reset(self, target: int, **row: Any) -> str | None:
        self.count, self.target = 0, target
        return f" To {target}."

    def up(self, by: int) -> str:
        """Counts up.

        Args:
            by: How far.
        """
        self.count += by
        return f"now {self.count}"

    def _hidden(self) -> None: ...

    @property
    def costly(self) -> None:
        raise AssertionError("properties are not looked at")

    def get_reward(self) -> float:
        return float(self.count == self.target)


class Asking:
    async def reset(self, **row: Any) -> None:
        assert "environment" not in row and row["prompt"][0]["role"] == "user"

    async def ask(self) -> str:
        """Asks."""
        return "nothing"


def test_trl_s_environments_run_unchanged() -> None:
    factory = trl_environment(Counter)
    assert factory.name == "Counter" and factory.scores
    episode, prompt = episode_of(factory, call("up", by=1), call("up", by=2), "Done.")
    assert replies(episode) == ["now 1", "now 3"]
    assert episode.scores == {"Counter": 1.0} and episode.reward == 1.0
    assert "Count. To 3." in prompt
    assert '"up"' in prompt and "get_reward" not in prompt and "_hidden" not in prompt


def test_the_verifier_cannot_be_called_in_mid_episode() -> None:
    episode, _ = episode_of(trl_environment(Counter), call("get_reward"), call("reset"), "No.")
    assert all("there is no tool" in reply for reply in replies(episode))


def test_the_row_chooses_among_several() -> None:
    factory = trl_environment({"count": Counter, "ask": Asking}, tools=[add])
    columns = {"target": 3, "environment": "ask"}
    problem = Problem("p", PROBLEM.prompt, columns)
    episode, prompt = episode_of(
        factory, call("ask") + call("up", by=1) + call("add", a=1, b=1), "End.", problem=problem
    )
    first, second, third = replies(episode)
    assert (first, third) == ("nothing", "2") and "there is no tool 'up'" in second
    assert '"up"' not in prompt
    assert episode.reward is None, "it has none of its own, which is not 0"
    with pytest.raises(DataError, match="which is none of: count, ask"):
        episode_of(factory, "x", problem=PROBLEM)


def test_an_environment_without_reset_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no method `reset`"):
        trl_environment(object)


def test_state_is_not_shared_between_episodes() -> None:
    runner = Episodes(trl_environment(Counter), tokenizer_of("tiny"), (END,), LIMITS)
    group = play(calling(call("up", by=3), "Done."), runner, 4, PROBLEM, 2000)
    assert [c.episode.reward for c in group.completions if c.episode] == [1.0] * 4
