"""vLLM itself, its CPU build, serving the embedded model: what our engines and it agree on."""

import asyncio
import pathlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as Get
from urllib.request import urlopen

import pytest
import torch

from engines import generate, sync
from groupwise.config import AdapterSettings, Config
from groupwise.policy.load import Policy, load_policy
from groupwise.remote.vllm_servers import VllmServers
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.noise import answer_key
from groupwise.tracking.run import read_metrics
from groupwise.training.api import train
from groupwise.types import Completion, Group, Problem, Request, Sampling
from real_vllm import BATCH, STEPS, TOKEN, Running, config, needs_vllm
from updates import policy_logprobs

pytestmark = [pytest.mark.cluster, needs_vllm]

GREEDY = Sampling(max_tokens=24, temperature=0.0)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPWISE_TOKEN", TOKEN)


def tiny(adapter: AdapterSettings | None = None) -> Policy:
    return load_policy("tiny", torch.device("cpu"), torch.float32, adapter=adapter)


def engine(server: Running, policy: Policy, timing: str = "in_turn") -> VllmServers:
    """Rows of up to 64 tokens."""
    settings: dict[str, Any] = {
        "engine": {"kind": "vllm"},
        "timing": {"kind": timing},
        "place": {"urls": [server.url], "timeout": 60},
        "rollout": {"max_prompt_tokens": 32, "max_completion_tokens": 32},
        "eval": {"max_completion_tokens": 32},
    }
    return VllmServers(policy, Config.model_validate(settings))


def requests(policy: Policy, answers: int = 3) -> list[Request]:
    texts = ["3+4=", "12+9=", "What is 7 + 8?"]
    prompts = [tuple(policy.tokenizer(text)["input_ids"]) for text in texts]
    return [
        Request(prompt, tuple(answer_key(0, n, i) for i in range(answers)))
        for n, prompt in enumerate(prompts)
    ]


def shake(policy: Policy, by: float) -> None:
    """Other weights, noticeably."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.requires_grad:
                weight.add_(by * torch.randn_like(weight))


def same_answers(ours: Sequence[Any], theirs: Sequence[Any], within: float = 1e-3) -> None:
    for own, group in zip(ours, theirs, strict=True):
        for a, b in zip(own, group, strict=True):
            assert a.tokens == b.tokens and a.stop == b.stop
            assert b.logprobs == pytest.approx(a.logprobs, abs=within)


def trainer_logprobs(
    policy: Policy, asked: Sequence[Request], found: Sequence[Any], temperature: float
) -> list[float]:
    groups = [
        Group(Problem(str(n), ""), request.prompt_tokens, tuple(answers))
        for n, (request, answers) in enumerate(zip(asked, found, strict=True))
    ]
    answers = policy_logprobs(policy, groups, temperature, 4096)
    return [logprob for place in sorted(answers) for logprob in answers[place]]


def flat(found: Sequence[tuple[Completion, ...]]) -> list[float]:
    return [logprob for group in found for answer in group for logprob in answer.logprobs]


def test_greedy_answers_are_those_of_our_own_engine(server: Running) -> None:
    policy = tiny()
    asked = requests(policy, answers=1)
    ours = generate(NativeEngine(policy, max_batch=8), asked, GREEDY)
    same_answers(ours, generate(engine(server, policy), asked, GREEDY))
    assert {answer.stop for (answer,) in ours} & {"eos", "length"}


def test_pushed_weights_are_what_answers_come_from(server: Running) -> None:
    policy = tiny()
    sampler = engine(server, policy)
    asked = requests(policy, answers=1)
    before = generate(sampler, asked, GREEDY)
    shake(policy, 0.03)
    sync(sampler, 5)
    after = generate(sampler, asked, GREEDY)
    same_answers(generate(NativeEngine(policy, max_batch=8), asked, GREEDY), after)
    assert [a.tokens for (a,) in after] != [a.tokens for (a,) in before]
    assert {a.version for (a,) in after} == {5}
    sync(sampler, 6)  # the same weights again: nothing is left of a half-loaded state
    same_answers(after, generate(sampler, asked, GREEDY), within=1e-5)


def test_in_flight_answers_go_on_by_weights_that_arrive_as_a_difference(server: Running) -> None:
    """Until the weights are there the server always has more to do than fits into a batch, so some
    answers are half done then, at any speed."""
    policy = replace(tiny(), eos_ids=())  # answers are as long as they may be
    sampler = engine(server, policy, "in_flight")
    sync(sampler, 0)
    prompts = [request.prompt_tokens for request in requests(policy, answers=0)]
    answers: list[Completion] = []

    async def flight() -> None:
        began, arrived = asyncio.Event(), asyncio.Event()

        async def draw(stream: int) -> None:
            """One answer after the other; those of two streams do not end at the same time."""
            sampling = Sampling(60 + stream, temperature=2.0)
            for number in count():
                key = answer_key(0, stream, number)
                answers.extend(await sampler.sample(Request(prompts[stream % 3], (key,)), sampling))
                began.set()
                if arrived.is_set():
                    return

        async with asyncio.TaskGroup() as streams:
            for stream in range(3 * BATCH):
                streams.create_task(draw(stream))
            await began.wait()
            with torch.no_grad():
                for weight in policy.model.parameters():
                    weight.view(-1)[::97] *= 1.05
            await asyncio.to_thread(sync, sampler, 1)
            arrived.set()

    asyncio.run(flight())
    assert sampler.published.difference is not None
    versions = [answer.versions for answer in answers if answer.versions]
    assert versions and all([v for _, v in parts] == [0, 1] for parts in versions)
    assert {answer.version for answer in answers if not answer.versions} <= {0, 1}
    greedy = generate(sampler, requests(policy, answers=1), GREEDY)
    same_answers(
        generate(NativeEngine(policy, max_batch=8), requests(policy, answers=1), GREEDY), greedy
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_of_what_was_drawn_at_its_temperature(
    server: Running, temperature: float
) -> None:
    policy = tiny()
    asked = requests(policy, answers=6)
    found = generate(
        engine(server, policy), asked, Sampling(max_tokens=20, temperature=temperature)
    )
    assert flat(found) == pytest.approx(
        trainer_logprobs(policy, asked, found, temperature), abs=1e-3
    )
    assert min(flat(found)) < -1.0  # not all were certain


def test_filters_are_in_the_log_probs(server: Running) -> None:
    """With top_k=1 the only token left is certain; with a filter the rest becomes likelier."""
    policy = tiny()
    asked, sampler = requests(policy, answers=4), engine(server, policy)
    assert min(flat(generate(sampler, asked, Sampling(8, top_k=1)))) > -1e-4
    found = generate(sampler, asked, Sampling(16, temperature=1.3, top_p=0.8))
    free = trainer_logprobs(policy, asked, found, 1.3)
    assert all(a >= b - 1e-3 for a, b in zip(flat(found), free, strict=True))
    assert max(a - b for a, b in zip(flat(found), free, strict=True)) > 0.05


def test_an_answer_follows_from_its_key(server: Running) -> None:
    policy = tiny()
    sampler, sampling = engine(server, policy), Sampling(max_tokens=16)
    asked = requests(policy, answers=6)
    together = generate(sampler, asked, sampling)
    assert len({a.tokens for group in together for a in group}) > 9
    for request, answers in zip(asked, together, strict=True):
        alone = generate(sampler, [Request(request.prompt_tokens, request.keys[2:3])], sampling)
        assert alone[0][0].tokens == answers[2].tokens


def test_answers_end_at_eos_stop_strings_and_the_limit(server: Running) -> None:
    policy = tiny()
    asked, sampler = requests(policy, answers=8), engine(server, policy)
    free = [a for group in generate(sampler, asked, Sampling(60)) for a in group]
    ended = [a for a in free if a.stop == "eos"]
    assert ended and all(a.tokens[-1] in policy.eos_ids for a in ended)
    short = [a for group in generate(sampler, asked, Sampling(3)) for a in group]
    assert any(a.stop == "length" and len(a.tokens) == 3 for a in short)
    text = policy.tokenizer.decode(max(free, key=lambda a: len(a.tokens)).tokens)
    stop = text[len(text) // 2]
    cut = [a for group in generate(sampler, asked, Sampling(60, stop=(stop,))) for a in group]
    for long, answer in zip(free, cut, strict=True):
        shown = policy.tokenizer.decode(answer.tokens, skip_special_tokens=True)
        assert (stop in shown) == (answer.stop == "stop")
        assert long.tokens[: len(answer.tokens)] == answer.tokens
    assert any(a.stop == "stop" for a in cut)


def test_every_path_but_health_asks_for_the_token(server: Running) -> None:
    with urlopen(f"{server.url}/health", timeout=10) as reply:
        assert reply.status == 200
    for path in ("/v1/models", "/groupwise/state", "/metrics", "/version", "/openapi.json"):
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{server.url}{path}", timeout=10)
        assert refused.value.code == 401, path
    known = Get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {TOKEN}"})
    with urlopen(known, timeout=10) as reply:
        assert reply.status == 200


def test_an_adapter_is_pushed_alone_and_answers_come_from_it(adapter_server: Running) -> None:
    policy = tiny(AdapterSettings(rank=4, alpha=16))
    asked = requests(policy, answers=1)
    sampler = engine(adapter_server, policy)
    plain = generate(sampler, asked, GREEDY)
    same_answers(generate(NativeEngine(tiny(), max_batch=8), asked, GREEDY), plain)
    for version, by in ((1, 0.2), (2, 0.2)):
        shake(policy, by)
        sync(sampler, version)
        found = generate(sampler, asked, GREEDY)
        same_answers(generate(NativeEngine(policy, max_batch=8), asked, GREEDY), found)
        assert [a.tokens for (a,) in found] != [a.tokens for (a,) in plain]
        plain = found
    sampled = generate(sampler, requests(policy, 4), Sampling(16))
    expected = trainer_logprobs(policy, requests(policy, 4), sampled, 1.0)
    assert flat(sampled) == pytest.approx(expected, abs=1e-3)


def test_a_run_with_an_adapter_pushes_it_after_each_update(
    adapter_server: Running, tmp_path: pathlib.Path
) -> None:
    run = config("adapter=lora", "adapter.rank=4", servers=[adapter_server])
    train(run, tmp_path / "run", quiet=True)
    lines = read_metrics(tmp_path / "run")
    assert len(lines) == STEPS and all(line["sampler_gap"] < 1e-3 for line in lines)
