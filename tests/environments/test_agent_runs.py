"""Whole runs with agents behind a URL, and the gateway as a server of its own."""

import asyncio
import gzip
import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
import torch

import groupwise
from environments.test_runs import SMALL, metrics_of
from groupwise.environments.agent import agent_environment
from groupwise.environments.chat import TemplateChat
from groupwise.environments.gateway_server import GatewaySettings, NamedSessions, standalone_app
from groupwise.errors import ConfigError
from groupwise.load import make_engine
from groupwise.policy.load import Policy, load_policy
from groupwise.recipe import load_recipe
from groupwise.rollout.engine import generate
from groupwise.rollout.engine_thread import EngineThread
from groupwise.rollout.native.engine import NativeEngine
from groupwise.types import Completion, Problem, Request, Sampling
from remote.serving import TOKEN, served, serving_command

TOOLS: Any = [{"type": "function", "function": {"name": "add", "description": "Adds."}}]


async def agent(base_url: str, api_key: str, problem: Problem) -> dict[str, Any]:
    """Asks twice, the second time as a stream."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        create: Any = client.chat.completions.create
        messages: list[Any] = list(problem.prompt)
        first = await create(model="any", messages=messages, tools=TOOLS, max_tokens=16)
        messages += [first.choices[0].message, {"role": "user", "content": "Sure?"}]
        stream = await create(model="any", messages=messages, tools=TOOLS, stream=True)
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        return {"reward": float(str(problem.columns["answer"]) in text)}


class Watched:
    """An engine that keeps what it drew."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.drawn = engine, []

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        answers = await self.engine.sample(request, sampling)
        self.drawn += [(request.prompt_tokens, answer) for answer in answers]
        return answers

    def load_weights(self, version: int, weights: Any) -> None:
        self.engine.load_weights(version, weights)

    def close(self) -> None:
        self.engine.close()


@pytest.mark.slow
def test_training_through_the_official_client_learns_from_what_was_sampled(
    tmp_path: pathlib.Path,
) -> None:
    watched: list[Watched] = []

    def engine(policy: Policy, config: Any) -> Any:
        watched.append(Watched(make_engine(policy, config)))
        return watched[-1]

    settings = [*SMALL, "steps=1", "batch.prompts=1", "eval.problems=1", "eval.k=1"]
    settings += ["rollout.max_completion_tokens=48"]
    result = groupwise.train(
        load_recipe("demo", settings),
        tmp_path / "run",
        environment=agent_environment(agent),
        engine=engine,
        quiet=True,
    )
    (line,) = metrics_of(result.folder)
    assert line["episode/turns"] == 2 and line["episode/failed"] == 0
    assert 0 <= line["rewards/agent"] <= 1 and 0 < line["episode/waiting"] <= 1
    (file,) = (result.folder / "rollouts").glob("step-*.jsonl.gz")
    with gzip.open(file, "rt") as lines:
        stored = [answer for line in lines for answer in answers_in(json.loads(line))]
    assert len(stored) == 3 * 2
    for prompt, tokens, logprobs in stored:  # the last ones are cut where the budget ends
        drawn = [answer for before, answer in watched[0].drawn if before == prompt]
        kept = [(a.tokens[: len(tokens)], a.logprobs[: len(tokens)]) for a in drawn]
        assert (tokens, logprobs) in kept


def answers_in(group: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """What the model drew, with the tokens before it."""
    for answer in group["completions"]:
        tokens, flags = answer["tokens"], answer["sampled"] or [True] * len(answer["tokens"])
        edges = [n for n, own in enumerate([*flags, False]) if own != ([False, *flags][n])]
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            before = (*group["prompt_tokens"], *tokens[:start])
            yield before, tuple(tokens[start:end]), tuple(answer["logprobs"][start:end])


PROGRAM = """
import json, sys

import openai

problem, client = json.load(sys.stdin), openai.OpenAI()
reply = client.chat.completions.create(model="any", messages=problem["prompt"])
text = reply.choices[0].message.content
print(json.dumps({"reward": float(str(problem["columns"]["answer"]) in text)}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("timing", ["in_turn", "in_flight"])
def test_a_recipe_names_a_program_and_needs_trust(timing: str, tmp_path: pathlib.Path) -> None:
    program, recipe = tmp_path / "agent.py", tmp_path / "agent.yaml"
    program.write_text(PROGRAM)
    command = json.dumps([sys.executable, str(program)])
    recipe.write_text(f"environment: {{kind: agent, command: {command}, at_once: 2}}\n")
    with pytest.raises(ConfigError, match=r"environment\.command\.0"):
        load_recipe(str(recipe))
    small = [*SMALL, "steps=1", "batch.prompts=1", "batch.group_size=2", "eval.problems=1"]
    small += ["eval.k=1", f"timing={timing}"]
    config = load_recipe(str(recipe), small, trust_code=True)
    lines = metrics_of(groupwise.train(config, tmp_path / timing, quiet=True).folder)
    assert lines[0]["episode/turns"] == 1 and lines[0]["episode/failed"] == 0


def test_what_is_typed_needs_no_trust_and_a_function_no_kind(tmp_path: pathlib.Path) -> None:
    recipe = tmp_path / "empty.yaml"
    recipe.write_text("steps: 1\n")
    typed = ["environment.kind=agent", "environment.command=[python, my_agent.py]"]
    assert load_recipe(str(recipe), typed).environment.kind == "agent"
    typed = ["environment.function=my_agent.py:run"]
    assert load_recipe(str(recipe), typed).environment.kind == "agent"
    with pytest.raises(ConfigError, match="agent"):
        load_recipe(str(recipe), ["environment.kind=agent"])


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy("tiny", torch.device("cpu"), torch.float32, layout="padded")


def test_greedy_replies_are_the_engine_s_and_the_server_tells_what_it_recorded(
    policy: Policy,
) -> None:
    settings = GatewaySettings("tiny", Sampling(12, temperature=0.0))
    sessions = NamedSessions(EngineThread(NativeEngine(policy, 8)), policy, settings)
    with served(standalone_app(sessions, TOKEN, 8)) as url:
        client = openai.OpenAI(base_url=f"{url}/s/one/v1", api_key=TOKEN, max_retries=0)
        create: Any = client.chat.completions.create
        messages: list[Any] = [{"role": "user", "content": "What is 3+4?"}]
        ids = {"return_token_ids": True}
        reply = create(model="tiny", messages=messages, extra_body=ids)
        messages += [reply.choices[0].message, {"role": "user", "content": "And 5+6?"}]
        second = create(model="tiny", messages=messages, extra_body=ids)
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        record = httpx2.get(f"{url}/s/one", headers=bearer).json()
        (segment,) = record["segments"]
        whole = segment["prompt_token_ids"] + segment["token_ids"]
        assert whole == second.prompt_token_ids + second.choices[0].token_ids
        assert sum(segment["sampled"]) == sum(record["turns"]) and segment["versions"] == [[0, 0]]
        assert len(segment["logprobs"]) == len(segment["token_ids"])
        assert [m["role"] for m in record["messages"]] == ["user", "assistant"] * 2
        # In no session, nothing is held.
        free = openai.OpenAI(base_url=f"{url}/v1", api_key=TOKEN)
        free.chat.completions.create(model="tiny", messages=messages[:1])
        assert list(sessions.named) == ["one"]
        for path, headers, status in (
            ("/s/one", {}, 401),
            ("/s/one", {"Authorization": "Bearer wrong-token-of-20-chars"}, 401),
            ("/s/two", bearer, 404),
            ("/nothing", bearer, 404),
        ):
            assert httpx2.get(url + path, headers=headers).status_code == status
        assert httpx2.get(f"{url}/health").text == "ok\n"
        assert httpx2.delete(f"{url}/s/one", headers=bearer).json() == record
        assert httpx2.get(f"{url}/s/one", headers=bearer).status_code == 404
    chat = TemplateChat(policy.tokenizer, policy.eos_ids)
    prompt = chat.opening(messages[:1], ())
    engine = NativeEngine(policy, 8)
    ((answer,),) = generate(engine, [Request(prompt, (1,))], Sampling(12, temperature=0.0))
    assert tuple(reply.choices[0].token_ids) == answer.tokens
    assert tuple(reply.prompt_token_ids) == prompt
    following = Request(tuple(second.prompt_token_ids), (1,))
    ((answer,),) = generate(engine, [following], Sampling(12, temperature=0.0))
    assert tuple(second.choices[0].token_ids) == answer.tokens


@pytest.mark.slow
def test_serve_gateway_answers_the_official_client() -> None:
    options = ("--temperature", "2.0", "--max-tokens", "8", "--seed", "5")
    with serving_command("gateway", "tiny", *options) as (url, _):

        async def ask(name: str) -> list[int]:
            async with openai.AsyncOpenAI(base_url=f"{url}/s/{name}/v1", api_key=TOKEN) as client:
                create: Any = client.chat.completions.create
                reply = await create(
                    model="tiny",
                    messages=[{"role": "user", "content": "What is 37+48?"}],
                    temperature=2.0,
                    extra_body={"return_token_ids": True},
                )
                return reply.choices[0].token_ids

        async def all_of(*names: str) -> list[list[int]]:
            return await asyncio.gather(*(ask(name) for name in names))

        first = asyncio.run(all_of("a", "b", "c"))
        assert len({tuple(tokens) for tokens in first}) == 3, "each session has a key of its own"
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        for name in "abc":
            assert httpx2.delete(f"{url}/s/{name}", headers=bearer).status_code == 200
        assert asyncio.run(all_of("a", "b", "c")) == first, "and gets the same reply again"
