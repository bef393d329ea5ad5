"""Streams of the gateway: parts of a reply are sent while the rest of it is still being sampled."""

import asyncio
import json
from typing import Any

import openai
import pytest

from environments.scripted import ScriptedEngine
from environments.test_agent import CLIENT, client_of, only, play, sampled_runs
from groupwise.environments.gateway_reply import _settled
from groupwise.rollout.engine import OnTokens
from groupwise.types import Completion, Problem, Request, Sampling


class Streaming(ScriptedEngine):
    """Tells of a token, and goes on when whoever reads the stream has got so far."""

    def __init__(self, text: str, wait: bool = True) -> None:
        super().__init__(lambda prompt: text)
        self.wait, self.read = wait, asyncio.Semaphore(0)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.fails_after: int | None = None

    async def sample_stream(
        self, request: Request, sampling: Sampling, on_tokens: OnTokens
    ) -> tuple[Completion, ...]:
        self.loop = asyncio.get_running_loop()
        answers = await self.sample(request, sampling)
        for n, token in enumerate(answers[0].tokens):
            if n == self.fails_after:
                raise RuntimeError("out of memory")
            on_tokens(0, [token], [-0.25])
            if self.wait and n < len(answers[0].tokens) - 2:
                await asyncio.wait_for(self.read.acquire(), 20)
        return answers

    def has_been_read(self) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.read.release)


def chunks_of(base_url: str, api_key: str, problem: Problem, **more: Any) -> Any:
    messages: Any = list(problem.prompt)
    create: Any = client_of(base_url, api_key).chat.completions.create
    return create(model="any", messages=messages, stream=True, **more)


def test_a_part_arrives_before_the_next_token_is_drawn() -> None:
    engine, chunks = Streaming("It is seven."), []

    def run(base_url: str, api_key: str, problem: Problem) -> float:
        extra = {"return_token_ids": True}
        for chunk in chunks_of(base_url, api_key, problem, logprobs=True, extra_body=extra):
            chunks.append(chunk)
            if getattr(chunk.choices[0], "token_ids", None):
                engine.has_been_read()
        return 1.0

    answer = only(play(run, engine=engine))
    assert answer.episode and answer.episode.error == ""
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "It is seven." == answer.text
    ids = [id for chunk in chunks for id in getattr(chunk.choices[0], "token_ids", None) or ()]
    assert [tuple(ids)] == sampled_runs(answer) and len(ids) > 4
    listed = [c.choices[0].logprobs.content for c in chunks if c.choices[0].logprobs]
    assert [entry.logprob for entries in listed for entry in entries] == [-0.25] * len(ids)
    assert chunks[0].prompt_token_ids and chunks[-1].choices[0].finish_reason == "stop"


def test_with_tools_a_call_is_never_sent_as_text() -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "add"}}]
    seen: list[Any] = []

    def run(base_url: str, api_key: str, problem: Problem) -> None:
        seen.extend(chunks_of(base_url, api_key, problem, tools=tools))

    only(play(run, engine=Streaming(f"I add. {call}", wait=False)))
    assert "".join(c.choices[0].delta.content or "" for c in seen) == "I add."
    assert [c.choices[0].finish_reason for c in seen][-1] == "tool_calls"


def test_an_engine_that_fails_in_mid_stream_is_an_error_for_the_client() -> None:
    engine, raised = Streaming("It is seven.", wait=False), []
    engine.fails_after = 2

    def run(base_url: str, api_key: str, problem: Problem) -> None:
        try:
            list(chunks_of(base_url, api_key, problem))
        except openai.APIError as error:
            raised.append(error)

    with pytest.raises(RuntimeError, match="out of memory"):
        play(run, engine=engine)
    assert "RuntimeError in the engine" in str(raised[0])


def test_a_request_that_is_refused_gets_its_status() -> None:
    refused: list[int] = []

    def run(base_url: str, api_key: str, problem: Problem) -> None:
        with pytest.raises(openai.BadRequestError) as error:
            chunks_of(base_url, api_key, problem, temperature=0.123)
        refused.append(error.value.status_code)
        chunks_of(base_url, api_key, problem).close()

    play(run, engine=Streaming("x", wait=False))
    assert refused == [400] and CLIENT.max_retries == 0


def test_whoever_hangs_up_ends_the_request() -> None:
    """Or the engine would wait for a reader until its time-out, and the test with it."""
    engine, left = Streaming("one two three four five six"), []

    def run(base_url: str, api_key: str, problem: Problem) -> None:
        stream = chunks_of(base_url, api_key, problem)
        left.append(next(stream))
        stream.close()
        engine.write = lambda prompt: "x"
        engine.wait = False
        list(chunks_of(base_url, api_key, problem))

    answer = only(play(run, engine=engine))
    assert answer.text == "x" and len(left) == 1
    assert json.loads(left[0].model_dump_json())["choices"][0]["delta"]["role"] == "assistant"


@pytest.mark.parametrize(
    ("text", "settled"),
    [("one \n", "one"), ("it \ufffd", "it"), ("a STO", "a"), ("a STOP b", "a"), ("a STx", "a STx")],
)
def test_text_that_may_still_change_is_held_back(text: str, settled: str) -> None:
    assert _settled(text, ("STOP",)) == settled
