"""OpenEnv servers: the same tests against the real package (`make openenv`) and a stand-in."""

import asyncio
import json
import pathlib
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from environments.fake_openenv import fake_server
from environments.scripted import END, LIMITS, ScriptedEngine
from environments.templates import tokenizer_of
from groupwise.environments.groups import Episodes
from groupwise.environments.openenv import openenv_environment
from groupwise.errors import ConfigError
from groupwise.recipe import load_recipe
from groupwise.types import Episode, Problem, Sampling

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = ROOT / ".venv-openenv" / "bin" / "python"
SERVER = pathlib.Path(__file__).parent / "servers" / "openenv_server.py"
Start = Callable[..., str]


def real_server(stack: ExitStack, kind: str, sessions: int) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([PYTHON, SERVER, kind, str(port), str(sessions)])
    stack.callback(process.wait)
    stack.callback(process.kill)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/schema").close()
            break
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None
            time.sleep(0.2)
    return f"http://127.0.0.1:{port}"


@pytest.fixture(
    scope="module",
    params=[
        "stand-in",
        pytest.param(
            "real",
            marks=[
                pytest.mark.cluster,
                pytest.mark.skipif(not PYTHON.exists(), reason="`make openenv` makes it"),
            ],
        ),
    ],
)
def start(request: Any) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(kind: str, sessions: int = 8) -> str:
            if request.param == "real":
                return real_server(stack, kind, sessions)
            return stack.enter_context(fake_server(kind, sessions))[0]

        yield started


@pytest.fixture(scope="module")
def echo(start: Start) -> str:
    return start("echo")


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(
    url: str, *scripts: list[str], seconds: float = 30.0, show: tuple[str, ...] = (), **row: Any
) -> list[Episode]:
    """One episode for each list of turns, side by side; each prompt names its own."""
    factory = openenv_environment(url, show)
    limits = replace(LIMITS, step_seconds=seconds)
    runner = Episodes(factory, tokenizer_of("tiny"), (END,), limits)

    def write(prompt: str) -> str:
        turns = scripts[int(prompt.partition("script ")[2].partition(".")[0])]
        return turns[prompt.count("<|assistant|>") - 1]

    async def run() -> list[Any]:
        engine = ScriptedEngine(write)
        prompts = [({"role": "user", "content": f"script {n}. "},) for n in range(len(scripts))]
        problems = [Problem(str(n), prompt, row) for n, prompt in enumerate(prompts)]
        return await asyncio.gather(
            *(runner.group(p, engine, (0,), [Sampling(2000)], 5) for p in problems)
        )

    return [group.completions[0].episode for group in asyncio.run(run())]


def said(episode: Episode) -> list[str]:
    return [m["content"] for m in episode.messages if m["role"] != "assistant"]


def test_an_action_of_one_text_is_what_the_model_writes(echo: str) -> None:
    (episode,) = play(echo, ["hello", "end"], word="blue", unknown={"a": 1})
    first, last = (json.loads(text) for text in said(episode))
    assert first == {"echoed_message": "hello", "message_length": 5} and last["message_length"] == 3
    assert episode.rewards == (0.5, 0.3) and not episode.error, "`done` ended it"


def test_the_model_sees_the_fields_that_it_shall(echo: str) -> None:
    (episode,) = play(echo, ["hello", "end"], show=("echoed_message",))
    assert said(episode) == ["hello", "end"]


def test_reset_gets_the_row_and_the_seed(echo: str) -> None:
    factory = openenv_environment(echo, ("echoed_message",))
    environment = factory.make(Problem("p", "Go."))

    async def reset() -> Any:
        reply = await environment.reset(Problem("p", "Go.", {"word": "blue"}), 7)
        await environment.close()
        return reply

    assert asyncio.run(reset()).messages == ({"role": "user", "content": "ready blue 7"},)


def test_what_a_step_raises_is_told(echo: str) -> None:
    (episode,) = play(echo, ["fail", "end"], show=("echoed_message",))
    assert said(episode) == ["error: illegal move", "end"]
    assert episode.rewards == (None, 0.3), "an error is no reward, and not 0"


def test_an_action_of_several_fields_is_a_tool(start: Start) -> None:
    url = start("counter")
    (tool,) = openenv_environment(url).tools
    assert tool.name == "Move" and set(tool.parameters["properties"]) == {"by", "name"}
    assert tool.parameters["required"] == ["by"]
    wrong = call("Move", by="x") + call("Run", by=1) + "<tool_call>{</tool_call>"
    (episode,) = play(url, [wrong, call("Move", by=1), call("Move", by=2) + call("Move", by=9)])
    told, unknown, unread, *counts = said(episode)
    assert "by: Input should be a valid integer" in told and "no tool 'Run'" in unknown
    assert "not valid JSON" in unread
    assert [json.loads(count)["count"] for count in counts] == [1, 3], "none after `done`"
    assert episode.rewards == (None, 1.0, 2.0) and not episode.error
    (silent,) = play(url, ["I would rather not."])
    assert silent.reward is None and len(silent.turns) == 1, "doing nothing earns nothing, not 0"


def test_mcp_tools_of_a_server_are_tools(start: Start) -> None:
    url = start("tools")
    (tool,) = openenv_environment(url).tools
    assert tool.name == "echo_message" and "message" in tool.parameters["properties"]
    (episode,) = play(url, [call("echo_message", message="hi"), "Done."])
    assert "echo hi" in said(episode)[0] and not episode.error


def test_a_server_of_one_session_serves_many_episodes(start: Start) -> None:
    url = start("echo", sessions=1)
    for episode in play(url, *[["hello", "end"]] * 12, seconds=5.0):
        assert not episode.error and episode.rewards == (0.5, 0.3)


def test_a_server_that_breaks_costs_its_own_episode_only() -> None:
    with fake_server("echo") as (url, fake):
        broken = {"lost": "lost the connection", "nonsense": "not JSON", "[]": "got the message"}
        broken["liar"] = "gave the reward"
        *failed, good = play(url, *([turn, "end"] for turn in broken), ["hello", "end"])
        for (turn, why), episode in zip(broken.items(), failed, strict=True):
            assert why in episode.error and episode.reward is None, turn
        assert not good.error and fake.is_left_alone()


def test_waiting_for_a_session_is_not_the_environment_s_time() -> None:
    """Twelve episodes, one session, far less time for a step than the queue takes."""
    with fake_server("echo", sessions=1) as (url, fake):
        slow = fake.serve

        async def late(connection: Any) -> None:
            await asyncio.sleep(0.1)
            await slow(connection)

        fake.serve = late  # type: ignore[method-assign]
        episodes = play(url, *[["hello", "end"]] * 12, seconds=0.6)
        assert not any(episode.error for episode in episodes)
        assert fake.most == 1 and 0 < fake.refusals < 24, "the server was asked seldom"
        assert all(episode.waited < 0.6 for episode in episodes)


def test_no_server_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="no OpenEnv server answers there"):
        openenv_environment("http://127.0.0.1:9")


def test_a_recipe_names_the_address() -> None:
    config = load_recipe("demo", ["environment.url=http://127.0.0.1:8000"])
    assert config.environment.kind == "openenv"
    with pytest.raises(ConfigError, match="urls must look like"):
        load_recipe("demo", ["environment.url=ftp://x"])
