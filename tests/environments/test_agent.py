"""Agents behind a URL: over real HTTP, as functions and as programs, well-behaved and not."""

import asyncio
import json
import os
import pathlib
import sys
import time
from dataclasses import replace
from typing import Any, cast

import openai
import pytest

from environments.scripted import END, LIMITS, ScriptedEngine
from environments.templates import tokenizer_of
from groupwise.environments.agent import agent_environment
from groupwise.environments.groups import Episodes
from groupwise.errors import ConfigError
from groupwise.types import Completion, Group, Problem, Request, Sampling

CALL = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>'
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
QUESTION = ({"role": "user", "content": "What is 3+4?"},)


CLIENT = openai.OpenAI(base_url="http://127.0.0.1:1", api_key="none", max_retries=0)


def client_of(base_url: str, api_key: str) -> openai.OpenAI:
    """The official client; to make one from nothing takes a third of a second."""
    return CLIENT.with_options(base_url=base_url, api_key=api_key)


def ask(base_url: str, api_key: str, problem: Problem, **more: Any) -> Any:
    messages: Any = list(problem.prompt)
    create: Any = client_of(base_url, api_key).chat.completions.create
    return create(model="any", messages=messages, **more)


def problem(name: str = "p", **columns: Any) -> Problem:
    return Problem(name, QUESTION, {"answer": "7", **columns})


def write(prompt: str) -> str:
    """Calls a tool once, and then says what it said."""
    return "It is 7." if "7" in prompt.partition("<|assistant|>")[2] else f"I add. {CALL}"


def play(
    agent: Any, *problems: Problem, count: int = 1, engine: Any = None, **limits: Any
) -> list[Group]:
    options = {"override_sampling": limits.pop("override_sampling", False)}
    runner = Episodes(
        agent_environment(agent, **options), tokenizer_of("tiny"), (END,), replace(LIMITS, **limits)
    )
    sampling = [Sampling(max_tokens=200)] * count
    engine = engine or ScriptedEngine(write)

    async def gather() -> list[Group]:
        asked = problems or (problem(),)
        groups = (runner.group(p, engine, tuple(range(count)), sampling, seed=5) for p in asked)
        return list(await asyncio.gather(*groups))

    return asyncio.run(gather())


def only(groups: list[Group]) -> Completion:
    """Of one group, its first segment: the one that has the episode."""
    (group,) = groups
    assert sum(answer.episode is not None for answer in group.completions) == 1
    return group.completions[0]


def sampled_runs(answer: Completion) -> list[tuple[int, ...]]:
    """The stretches of tokens that the policy wrote."""
    runs: list[list[int]] = [[]]
    for token, own in zip(answer.tokens, answer.sampled or [True] * 9999, strict=False):
        if own:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [tuple(run) for run in runs if run]


def test_the_official_client_with_tools_and_streaming_is_recorded_token_by_token() -> None:
    seen: list[Any] = []

    async def run(base_url: str, api_key: str, problem: Problem) -> dict[str, Any]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
            assert [model.id async for model in client.models.list()] == ["groupwise"]
            messages: list[Any] = list(problem.prompt)
            ids, create = {"return_token_ids": True}, cast(Any, client.chat.completions.create)
            reply = await create(
                model="any", messages=messages, tools=[ADD], logprobs=True, extra_body=ids
            )
            choice = reply.choices[0]
            (call,) = choice.message.tool_calls
            assert choice.finish_reason == "tool_calls" and choice.message.content == "I add."
            seen.append((reply, choice))
            result = {"role": "tool", "tool_call_id": call.id, "content": "7"}
            messages += [choice.message, result]
            usage = {"stream": True, "stream_options": {"include_usage": True}}
            stream = await create(
                model="any", messages=messages, tools=[ADD], extra_body=ids, **usage
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == "It is 7." and chunks[-1].usage.completion_tokens > 3
            assert chunks[-2].choices[0].finish_reason == "stop"
            seen.append(chunks[0])
            return {"scores": {"right": 1.0, "style": None}}

    engine = ScriptedEngine(write)
    groups = play(run, engine=engine)
    answer, (first, second) = only(groups), engine.answers
    assert answer.episode and answer.episode.error == ""
    assert sampled_runs(answer) == [first.tokens, second.tokens]
    reply, choice = seen[0]
    assert tuple(choice.token_ids) == first.tokens
    assert tuple(reply.prompt_token_ids) == engine.requests[0].prompt_tokens
    assert [entry.logprob for entry in choice.logprobs.content] == list(first.logprobs)
    assert tuple(seen[1].choices[0].token_ids) == second.tokens
    assert tuple(seen[1].prompt_token_ids) == engine.requests[1].prompt_tokens
    episode = answer.episode
    assert episode is not None and episode.scores == {"right": 1.0, "style": None}
    assert episode.reward == 1.0 and episode.calls == 1 and episode.segments == 1
    assert [m["role"] for m in episode.messages] == ["assistant", "tool", "assistant"]
    assert answer.text == "It is 7." and answer.stop == "eos"
    assert 0 < episode.waited <= episode.seconds


def test_streamed_tool_calls_are_put_together_by_the_client() -> None:
    def run(base_url: str, api_key: str, problem: Problem) -> float:
        completions: Any = client_of(base_url, api_key).chat.completions
        messages: Any = list(problem.prompt)
        with completions.stream(model="any", messages=messages, tools=[ADD]) as stream:
            message = stream.get_final_completion().choices[0].message
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments) == {"a": 3, "b": 4}
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
        completions.create(model="any", messages=messages, tools=[ADD])
        return 0.25

    answer = only(play(run))
    assert answer.episode and answer.episode.error == "" and answer.episode.segments == 1
    assert answer.episode.scores == {"reward": 0.25}


def test_the_first_reply_is_the_answer_that_a_run_without_an_agent_would_get() -> None:
    def run(base_url: str, api_key: str, problem: Problem) -> None:
        ask(base_url, api_key, problem)

    engine = ScriptedEngine(write)
    play(run, engine=engine, count=2)
    assert sorted(request.keys for request in engine.requests) == [(0,), (1,)]


def test_functions_that_fail_cost_their_own_episode() -> None:
    def run(base_url: str, api_key: str, problem: Problem) -> Any:
        ask(base_url, api_key, problem)
        match problem.id:
            case "raises":
                raise KeyError(api_key)
            case "exits":
                sys.exit(3)
            case "lies":
                return {"reward": float("nan")}
            case "says both":
                return {"reward": 1, "scores": {}}
            case "says nothing of use":
                return "well done"
            case "sleeps":
                return asyncio.sleep(3600)
            case "blocks":
                time.sleep(9)
            case "refused":
                ask(base_url, api_key, problem, temperature=0.3)
        return 1.0

    said = {
        "raises": "raised KeyError",
        "exits": "raised SystemExit",
        "lies": "the agent gave the reward 'nan'",
        "says both": "one of the two",
        "says nothing of use": "not a reward",
        "sleeps": "did not ask the model again or end within 3 s",
        "blocks": "did not ask the model again or end within 3 s",
        "refused": "temperature=0.3",
    }
    groups = play(run, *(problem(name) for name in (*said, "good")), step_seconds=3.0)
    for group in groups:
        answer = only([group])
        assert answer.episode is not None
        if group.problem.id == "good":
            assert answer.episode.reward == 1.0 and answer.stop == "eos"
            continue
        assert said[group.problem.id] in answer.episode.error, group.problem.id
        assert answer.stop == "environment" and answer.episode.reward is None
    raised = only(groups[:1]).episode
    assert raised and "***" in raised.error, "keys are masked"


def test_an_agent_that_asks_for_nothing_has_failed() -> None:
    answer = only(play(lambda base_url, api_key, problem: 1.0))
    assert answer.episode and "did not ask the model" in answer.episode.error
    assert not answer.tokens and not answer.scored


def test_a_limit_ends_an_agent_without_making_it_a_failure() -> None:
    def run(base_url: str, api_key: str, problem: Problem) -> None:
        while True:
            ask(base_url, api_key, problem)

    began = time.monotonic()
    answer, second = play(run, max_turns=2)[0].completions
    assert time.monotonic() - began < 0.9, "a refusal does not wait for more of the body"
    assert second.segment == 1, "it asked the same thing again"
    assert answer.stop == "turns" and answer.episode and not answer.episode.error
    assert len(answer.episode.turns) == 2 and answer.scored


def test_an_engine_that_fails_ends_the_run() -> None:
    class Broken(ScriptedEngine):
        async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
            raise RuntimeError("out of memory")

    def run(base_url: str, api_key: str, problem: Problem) -> None:
        ask(base_url, api_key, problem)

    with pytest.raises(RuntimeError, match="out of memory"):
        play(run, engine=Broken(write))


def test_time_in_which_the_model_is_sampled_is_not_the_agent_s() -> None:
    class Slow(ScriptedEngine):
        async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
            await asyncio.sleep(1.2)
            return await super().sample(request, sampling)

    def run(base_url: str, api_key: str, problem: Problem) -> float:
        ask(base_url, api_key, problem)
        return 1.0

    answer = only(play(run, engine=Slow(write), step_seconds=1.0, episode_seconds=1.1))
    assert answer.episode and answer.episode.error == "" and answer.episode.seconds > 1.2
    assert answer.episode.waited < 1.1


PROGRAM = '''
import json, os, signal, subprocess, sys, time, urllib.error, urllib.request

problem = json.load(sys.stdin)
assert problem == json.load(open(os.environ["GROUPWISE_PROBLEM"]))
base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
mode, note = problem["id"], problem["columns"]["note"]


def post(data, url=base, key=key):
    """The status and the body of a request for a completion."""
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request(url + "/chat/completions", data, headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except urllib.error.URLError as error:  # closed while it was still being sent
        return 413, {"error": {"message": str(error)}}


body = json.dumps({"messages": problem["prompt"]}).encode()
if mode == "hostile":
    assert post(b"{")[0] == 400
    assert post(b"[" * 200000)[0] == 400
    assert post(body, key="x" * 32)[0] == 401
    assert post(body, key="")[0] == 401
    assert post(body, base.rsplit("/", 2)[0] + "/another/v1")[0] == 404
    assert post(b" " * (5 << 20))[0] == 413
    status, error = post(json.dumps({"messages": problem["prompt"], "top_p": 0.5}).encode())
    assert status == 400 and error["error"]["param"] == "top_p"
    assert post(body, base.partition("/s/")[0] + "/v1")[0] == 200, "the key alone names a session"
status, reply = post(body)
assert status == 200, reply
print("thinking aloud")
if mode == "exits":
    print("bad luck with " + key, file=sys.stderr)
    sys.exit(7)
if mode == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "hangs":
    time.sleep(3600)
if mode == "flood":
    sys.stdout.write("x" * (1 << 22) + "\\n")
if mode in ("left behind", "escaped"):
    new_session = mode == "escaped"
    started = [subprocess.Popen(["sleep", "300"], start_new_session=new_session) for _ in range(8)]
    open(note, "w").write(" ".join(str(child.pid) for child in started))
if mode == "forks for ever":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(note, "w").write(str(os.getpid()))
    for _ in range(5):
        os.fork()
    time.sleep(3600)
if mode == "talks":
    turn = reply["choices"][0]["message"]
    more = [*problem["prompt"], turn, {"role": "user", "content": "Sure?"}]
    assert post(json.dumps({"messages": more}).encode())[0] == 200
if mode != "silent":
    print(json.dumps({"reward": 0.5 if mode != "nan" else float("nan")}))
'''


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_programs_and_what_they_leave_behind_cost_their_own_episode(
    tmp_path: pathlib.Path,
) -> None:
    program = tmp_path / "agent.py"
    program.write_text(PROGRAM)
    failures = {
        "exits": "ended with exit code 7: 'bad luck with ***'",
        "dies": "ended by signal 9",
        "hangs": "did not ask the model again or end within 8 s",
        "forks for ever": "did not ask the model again or end within 8 s",
        "nan": "the agent gave the reward 'nan'",
    }
    good = ["hostile", "talks", "silent", "flood", "left behind", "escaped"]
    problems = [problem(mode, note=str(tmp_path / mode)) for mode in (*good, *failures)]
    began = time.monotonic()
    groups = play([sys.executable, "-S", str(program)], *problems, step_seconds=8.0)
    assert time.monotonic() - began < 60
    for group in groups:
        mode, answer = group.problem.id, only([group])
        assert answer.episode is not None
        if mode in failures:
            assert failures[mode] in answer.episode.error and answer.stop == "environment", mode
            assert answer.episode.reward is None and answer.tokens
        else:
            assert answer.episode.error == "", (mode, answer.episode.error)
            assert answer.stop == "eos"
            assert answer.episode.reward == (None if mode == "silent" else 0.5), mode
    lengths = {group.problem.id: len(only([group]).episode.turns) for group in groups}  # type: ignore[union-attr]
    assert lengths["talks"] == 2 and lengths["hostile"] == 2
    for mode in ("left behind", "escaped", "forks for ever"):
        pids = [int(pid) for pid in (tmp_path / mode).read_text().split()]
        assert pids and not any(alive(pid) for pid in pids), mode
    children = pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children")
    assert not [pid for file in children for pid in file.read_text().split() if alive(int(pid))]


def test_a_program_that_is_not_there_is_said_before_training() -> None:
    with pytest.raises(ConfigError, match=r"no program 'no-such-agent'"):
        agent_environment(["no-such-agent"])
    with pytest.raises(ConfigError, match="needs a command"):
        agent_environment([])


def test_a_prefill_cannot_open_what_an_agent_asks_for() -> None:
    with pytest.raises(ConfigError, match="prefill"):
        play(lambda *_: None, replace(problem(), prefill="<think>"))
