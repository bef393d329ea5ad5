"""Tools of a real MCP server, written with the official SDK, over its standard input and output."""

import asyncio
import json
import pathlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from environments.scripted import END, LIMITS, ScriptedEngine
from environments.templates import tokenizer_of
from groupwise.environments.base import EnvironmentFactory
from groupwise.environments.groups import Episodes
from groupwise.environments.mcp import McpServers, mcp_environment
from groupwise.errors import ConfigError, MissingExtraError
from groupwise.recipe import load_recipe
from groupwise.types import Episode, Problem, Sampling

pytest.importorskip("mcp")
COMMAND = [sys.executable, str(pathlib.Path(__file__).parent / "servers" / "mcp_server.py")]
PROBLEM = Problem("p", ({"role": "user", "content": "Go."},))


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(factory: EnvironmentFactory, *scripts: list[str], seconds: float = 20.0) -> list[Episode]:
    """One episode for each list of turns, side by side; each prompt names its own."""
    limits = replace(LIMITS, step_seconds=seconds)
    runner = Episodes(factory, tokenizer_of("tiny"), (END,), limits)

    def write(prompt: str) -> str:
        turns = scripts[int(prompt.partition("script ")[2][0])]
        return turns[prompt.count("<|assistant|>") - 1]

    async def run() -> list[Any]:
        engine = ScriptedEngine(write)
        prompts = [({"role": "user", "content": f"script {n}"},) for n in range(len(scripts))]
        problems = [replace(PROBLEM, prompt=prompt) for prompt in prompts]
        return await asyncio.gather(
            *(runner.group(p, engine, (0,), [Sampling(2000)], 5) for p in problems)
        )

    return [group.completions[0].episode for group in asyncio.run(run())]


def replies(episode: Episode) -> list[str]:
    return [m["content"] for m in episode.messages if m["role"] == "tool"]


@pytest.fixture(scope="module")
def own() -> Iterator[EnvironmentFactory]:
    factory = mcp_environment(COMMAND)
    yield factory
    factory.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[EnvironmentFactory]:
    factory = mcp_environment(COMMAND, shared=True)
    yield factory
    factory.close()


def test_tools_come_from_the_server(own: EnvironmentFactory) -> None:
    tools = {tool.name: tool for tool in own.tools}
    assert list(tools) == ["note", "add", "sleep", "crash", "fail"]
    assert tools["add"].description == "Adds two integers."
    assert tools["add"].parameters["properties"]["a"]["type"] == "integer"
    assert not own.scores


def test_calls_are_made_and_each_episode_has_a_server_of_its_own(own: EnvironmentFactory) -> None:
    script = [call("note", text="x") + call("add", a=3, b=4), call("note", text="y"), "Done."]
    for episode in play(own, script, script):
        assert replies(episode) == ["1 notes", "7", "2 notes"] and not episode.error
        assert len(episode.turns) == 3, "a turn without a call ends it"


@pytest.mark.slow
def test_a_hang_of_a_shared_server_costs_those_who_use_it(shared: EnvironmentFactory) -> None:
    hung, beside = play(
        shared,
        [call("sleep", seconds=3600), "Done."],
        [call("sleep", seconds=3600), "Done."],
        seconds=3.0,
    )
    assert "did not return within" in hung.error and beside.error
    (good,) = play(shared, [call("add", a=1, b=1), "Done."])
    assert replies(good) == ["2"], "it is replaced"


@pytest.mark.slow
def test_a_shared_server_is_one_process_and_is_replaced(shared: EnvironmentFactory) -> None:
    (first,) = play(shared, [call("note", text="x"), "Done."])
    (second,) = play(shared, [call("note", text="x"), "Done."])
    assert replies(first) == ["1 notes"] and replies(second) == ["2 notes"]
    (lost,) = play(shared, [call("crash"), "Done."])
    assert "lost the MCP server" in lost.error and lost.reward is None
    (third,) = play(shared, [call("note", text="x"), "Done."])
    assert replies(third) == ["1 notes"], "a new one"


@pytest.mark.slow
def test_a_server_that_is_closed_is_given_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its thread takes to notice."""
    servers = McpServers(COMMAND, shared=True)
    first = servers.take()
    assert asyncio.run(first.tools()) and servers.take() is first
    with monkeypatch.context() as busy:
        busy.setattr(first._loop, "call_soon_threadsafe", lambda *_: None)
        first.close()
        assert servers.take() is not first
    first.close()
    servers.close()


@pytest.mark.slow
def test_what_goes_wrong_in_a_call_is_told(own: EnvironmentFactory) -> None:
    written = [call("fail") + call("sub", a=1) + call("add", a="x") + "<tool_call>{</tool_call>"]
    (episode,) = play(own, [*written, "Never mind."])
    failed, unknown, wrong, unread = replies(episode)
    assert failed == "error: Error executing tool fail" and "there is no tool 'sub'" in unknown
    assert wrong.startswith("error: ") and "not valid JSON" in unread
    assert not episode.error and episode.malformed == 1


@pytest.mark.slow
def test_a_crash_or_a_hang_costs_its_own_episode_only(own: EnvironmentFactory) -> None:
    crashed, hung, good = play(
        own,
        [call("crash"), "Done."],
        [call("sleep", seconds=3600), "Done."],
        [call("add", a=1, b=1), "Done."],
        seconds=8.0,
    )
    assert "step() lost the MCP server" in crashed.error
    assert "step() did not return within 8 s" in hung.error
    assert replies(good) == ["2"] and not good.error


def test_a_server_that_does_not_start_is_named() -> None:
    with pytest.raises(ConfigError, match=r"environment\.command .* does not start.*no database"):
        mcp_environment([sys.executable, "-c", "raise SystemExit('no database')"])
    with pytest.raises(ConfigError, match="does not start: FileNotFoundError"):
        mcp_environment(["/nowhere/mcp-server"])


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtraError, match=r"groupwise\[mcp\]"):
        mcp_environment(COMMAND)


def test_a_command_in_a_recipe_must_be_trusted(tmp_path: pathlib.Path) -> None:
    recipe = tmp_path / "mcp.yaml"
    recipe.write_text("environment: {kind: mcp, command: [python, server.py], max_turns: 3}\n")
    with pytest.raises(ConfigError, match="--trust-code"):
        load_recipe(str(recipe))
    settings = load_recipe(str(recipe), trust_code=True).environment
    assert settings.kind == "mcp"
