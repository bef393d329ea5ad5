"""Servers that fail: whatever they do, answers are by the present weights or there is a message."""

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from starlette.responses import PlainTextResponse, Response

from engines import generate, sync
from fake_vllm import TOKEN, FakeVllm, running, tokens_for
from groupwise.check.doctor import needed_extras, vllm_servers
from groupwise.config import Config
from groupwise.errors import ConfigError, EngineGoneError, ModelError
from groupwise.policy.load import Policy, load_policy
from groupwise.recipe import parse, write_config
from groupwise.remote import client as client_module
from groupwise.remote import vllm_client
from groupwise.remote.vllm_payload import sampling_params
from groupwise.remote.vllm_servers import VllmServers, other_weights
from groupwise.rollout.native.engine import NativeEngine
from groupwise.tracking.run import read_metrics
from groupwise.training.api import train
from groupwise.types import Request, Sampling
from runs import fingerprint, small_config
from small_models import random_policy

REQUESTS = [Request((5, 6, 7), (11 << 9, 12 << 9, 13 << 9)), Request((9,), (14 << 9,))]
SAMPLING = Sampling(max_tokens=4)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPWISE_TOKEN", TOKEN)


@pytest.fixture
def two() -> Iterator[list[FakeVllm]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running(FakeVllm(random_policy()))) for _ in range(2)]


def engine(*fakes: FakeVllm, **more: Any) -> VllmServers:
    return VllmServers(random_policy(), config(*fakes, **more))


def config(*fakes: FakeVllm, max_batch: int = 256, timing: str = "in_turn", **more: Any) -> Config:
    """Rows of up to 20 tokens."""
    place = {"urls": [f.url for f in fakes], "timeout": 5.0, **more}
    lengths = {"max_prompt_tokens": 10, "max_completion_tokens": 10}
    engine = {"kind": "vllm", "max_batch": max_batch}
    settings = {"engine": engine, "place": place, "timing": {"kind": timing}, "rollout": lengths}
    return Config.model_validate({**settings, "eval": {"max_completion_tokens": 10}})


def expected() -> list[list[tuple[int, ...]]]:
    params = [[sampling_params(key, SAMPLING, (2,)) for key in r.keys] for r in REQUESTS]
    return [[tuple(tokens_for(p["seed"], 4)) for p in group] for group in params]


def answers(engine: VllmServers) -> list[list[tuple[int, ...]]]:
    return [[a.tokens for a in group] for group in generate(engine, REQUESTS, SAMPLING)]


def test_weights_arrive_whole_and_answers_carry_their_version(two: list[FakeVllm]) -> None:
    sampler = engine(*two)
    sync(sampler, 3)
    found = generate(sampler, REQUESTS, SAMPLING)
    assert [[a.tokens for a in group] for group in found] == expected()
    assert {a.version for group in found for a in group} == {3}
    assert found[0][0].logprobs == tuple(-t / 64 for t in found[0][0].tokens)
    own = dict(sampler.policy.model.named_parameters())
    for fake in two:
        assert fake.engine.calls == ["pause", "groupwise_reload", "resume"]
        assert fake.engine.weights.keys() == own.keys()
        assert all(torch.equal(fake.engine.weights[n], w) for n, w in own.items())
    answers(sampler)  # the same weights are not sent twice
    assert len(two[0].engine.calls) == 3
    with torch.no_grad():
        own["model.norm.weight"].add_(1)
    sync(sampler, 4)
    answers(sampler)
    assert torch.equal(two[1].engine.weights["model.norm.weight"], own["model.norm.weight"])
    assert two[1].engine.version.endswith(":4")


def rounded(policy: Policy) -> Policy:
    """With 16-bit weights, of which an update changes few."""
    policy.model.to(torch.bfloat16)
    return policy


def test_later_weights_travel_as_differences_and_arrive_to_the_bit(
    two: list[FakeVllm], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = vllm_client.VllmClient._put

    async def counted(self: Any, body: Any, length: int, *more: Any) -> bytes:
        sizes.append(length)
        return await original(self, body, length, *more)

    monkeypatch.setattr(vllm_client.VllmClient, "_put", counted)
    for fake in two:
        fake.policy = rounded(fake.policy)
        fake.engine.vllm_config.model_config.dtype = "torch.bfloat16"
    sampler = VllmServers(rounded(random_policy()), config(*two, timing="in_flight"))
    own = dict(sampler.policy.model.named_parameters())
    for version in range(4):
        sync(sampler, version)
        for fake in two:
            assert all(torch.equal(fake.engine.weights[n], w) for n, w in own.items())
            assert fake.engine.version.endswith(f":{version}") and fake.engine.running == "keep"
        if version == 2:  # one forgets, and gets the whole again
            two[1].engine.version = "default"
        with torch.no_grad():
            for weight in own.values():
                weight.view(-1)[version::97] += 1
    whole = [size for size in sizes if size > 0.5 * max(sizes)]
    assert len(sizes) == 9 and len(whole) == 3  # of the nine one was refused
    assert max(size for size in sizes if size not in whole) < 0.2 * max(sizes)


def test_in_flight_an_answer_may_be_by_several_weights_of_this_run() -> None:
    with running(FakeVllm(random_policy())) as fake:
        sampler = engine(fake, timing="in_flight")
        sync(sampler, 3)
        spans = [{"version": f"{sampler.run}:{n + 3}", "start": 2 * n, "end": 0} for n in range(2)]
        fake.spoil = lambda reply: reply | {"weight_versions": spans}
        (answer, *_), _ = generate(sampler, REQUESTS, SAMPLING)
        assert (answer.version, answer.versions) == (3, ((0, 3), (2, 4)))
        spans[1]["version"] = "another:4"
        with pytest.raises(EngineGoneError, match="another run has put its weights"):
            answers(sampler)


def test_work_is_shared_and_goes_on_when_one_dies(two: list[FakeVllm]) -> None:
    many = [Request((n + 3,), (n, n + 100)) for n in range(20)]
    sampler = engine(*two, max_batch=2)
    generate(sampler, many, SAMPLING)
    assert min(fake.asked for fake in two) > 5
    two[0].spoil = lambda reply: Response(status_code=500)
    assert answers(sampler) == expected()
    assert sampler.pool.servers[0].state is None and "status 500" in sampler.pool.servers[0].reason


BROKEN_REPLIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "its reply is no JSON": lambda reply: PlainTextResponse("{"),
    "its reply does not hold one answer": lambda reply: Response("[]"),
    "does not hold 1 to 4 tokens": lambda reply: reply | {"token_ids": [5] * 5},
    "not in the model's vocabulary": lambda reply: reply | {"token_ids": [5, 5, 5, 61]},
    "a log-prob for each token": lambda reply: reply | {"logprobs": None},
    "ended an answer by 'abort'": lambda reply: reply | {"finish_reason": "abort"},
    "which version of the weights drew it": lambda reply: reply | {"weight_versions": []},
    "it failed with status 503: busy": lambda reply: PlainTextResponse("busy", 503),
}


@pytest.mark.parametrize("message", BROKEN_REPLIES)
def test_a_reply_that_is_no_answer_ends_the_run_with_what_is_wrong(message: str) -> None:
    with running(FakeVllm(random_policy())) as fake:
        fake.spoil = BROKEN_REPLIES[message]
        sampler = engine(fake)
        with pytest.raises(EngineGoneError, match="no vLLM server is left") as failed:
            answers(sampler)
    assert message in str(failed.value) and fake.url in str(failed.value)


def test_a_server_that_was_started_again_gets_the_weights_again() -> None:
    with running(FakeVllm(random_policy())) as fake:
        sampler = engine(fake)
        answers(sampler)
        fake.engine.version, fake.engine.weights = "default", {}
        assert answers(sampler) == expected()
        assert fake.engine.version == sampler.wanted and fake.engine.weights


def test_another_run_at_the_same_server_is_refused() -> None:
    with running(FakeVllm(random_policy())) as fake:
        first = engine(fake)
        answers(first)
        second = engine(fake)
        answers(second)  # a new run takes over what an earlier one left
        with pytest.raises(EngineGoneError, match="each run needs servers of its own"):
            answers(first)
        assert fake.engine.version == second.wanted


def test_a_slow_server_and_a_silent_one_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "HEALTH_SECONDS", 0.5)
    with running(FakeVllm(random_policy())) as fake:
        sampler = engine(fake, timeout=0.6)
        answers(sampler)
        fake.delay = 15.0
        began = time.monotonic()
        with pytest.raises(EngineGoneError, match="although it is alive: it is too slow"):
            answers(sampler)
        assert time.monotonic() - began < 8  # tried twice, each for its time-out
    with pytest.raises(EngineGoneError, match="refused"):
        answers(sampler)


def test_a_run_begins_with_the_servers_that_are_there() -> None:
    with running(FakeVllm(random_policy())) as fake:
        gone = FakeVllm(random_policy())
        gone.url = "http://127.0.0.1:9"
        assert answers(engine(fake, gone)) == expected()
    with pytest.raises(EngineGoneError, match="Start one with `groupwise serve vllm MODEL`"):
        engine(gone)


WRONG_SERVERS = {
    "--max-model-len 20": {"max_model_len": 19},
    "--logprobs-mode processed_logprobs": {"logprobs_mode": "raw_logprobs"},
}


@pytest.mark.parametrize("fix", WRONG_SERVERS)
def test_a_server_that_cannot_serve_the_run_is_refused_with_the_flag(fix: str) -> None:
    fake = FakeVllm(random_policy(), **WRONG_SERVERS[fix])
    with running(fake), pytest.raises(ModelError, match=fix):
        engine(fake)


def test_another_model_is_refused_by_its_shape_or_by_its_log_probs() -> None:
    with running(FakeVllm(random_policy("phi"))) as fake:
        fake.engine.vllm_config.model_config.hf_text_config.hidden_size = 32
        with pytest.raises(ModelError, match="serves another model"):
            engine(fake)
    other = FakeVllm(random_policy(seed=5))  # the weights that it is given do not take
    with running(other), pytest.raises(ModelError, match="other log-probs than the policy"):
        answers(engine(other))


def test_weights_that_do_not_fit_end_the_run(two: list[FakeVllm]) -> None:
    two[0].engine.weights = {"another": torch.zeros(1)}
    with pytest.raises(ModelError, match=r"cannot load the weights.*no parameter of that name"):
        answers(engine(*two))
    assert two[0].engine.version == "broken" and two[0].engine.calls[-1] == "resume"


def test_longer_answers_than_a_server_takes_are_refused_before_they_are_asked() -> None:
    with running(FakeVllm(random_policy())) as fake:
        with pytest.raises(ModelError, match="--max-model-len 103"):
            generate(engine(fake), REQUESTS, Sampling(max_tokens=100))
        assert fake.asked == 0


def test_the_token_must_be_there_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(FakeVllm(random_policy())) as fake:
        monkeypatch.setenv("GROUPWISE_TOKEN", "another-token-than-its-own")
        with pytest.raises(ModelError, match="refuses the token: set GROUPWISE_TOKEN"):
            engine(fake)
        monkeypatch.delenv("GROUPWISE_TOKEN")
        with pytest.raises(ConfigError, match="export GROUPWISE_TOKEN"):
            engine(fake)


def test_messages_about_other_weights_say_whose() -> None:
    assert "started again" in other_weights("default", "a:3")
    assert "another run" in other_weights("b:3", "a:3")
    assert other_weights("a:2", "a:3") == "it has weights of version 2, not 3"


@pytest.mark.slow
def test_a_run_whose_last_server_goes_is_saved_first_and_goes_on_exactly(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With our own engine, whose answers are the same to the bit when it is asked again."""
    config = small_config("checkpoint.every=0", "eval.problems=2")
    train(config, tmp_path / "whole", quiet=True)
    original, steps = NativeEngine.sample, iter(range(100))

    async def until_it_goes(self: NativeEngine, *asked: Any) -> Any:
        if self.version == 2:
            next(steps)
            raise EngineGoneError("no vLLM server is left")
        return await original(self, *asked)

    with monkeypatch.context() as patch:
        patch.setattr(NativeEngine, "sample", until_it_goes)
        with pytest.raises(EngineGoneError, match=r"goes on from .*step-000002"):
            train(config, tmp_path / "run", quiet=True)
    assert next(steps) >= 1 and len(read_metrics(tmp_path / "run")) == 2
    train(config, tmp_path / "run", quiet=True)
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")


def test_the_doctor_says_which_servers_are_there() -> None:
    with running(FakeVllm(random_policy())) as fake:
        urls = [fake.url, "http://127.0.0.1:9"]
        found = list(vllm_servers(parse({"engine": "vllm", "place": {"urls": urls}})))
    assert [line.status for line in found] == ["ok", "fix"]
    assert "groupwise serve vllm MODEL" in found[1].fix
    assert list(vllm_servers(parse({}))) == []


def test_the_doctor_asks_for_vllm_only_where_it_is_in_process() -> None:
    servers = {"urls": ["http://a:1"]}
    assert needed_extras(parse({"engine": "vllm"})) == {"vllm"}
    assert needed_extras(parse({"engine": "vllm", "place": servers})) == set()


@pytest.mark.cluster
def test_of_two_ranks_the_first_pushes_and_both_draw(tmp_path: pathlib.Path) -> None:
    policy = load_policy("tiny", torch.device("cpu"), torch.float32)
    with running(FakeVllm(policy, max_model_len=512)) as fake:
        config = small_config("steps=2", "engine.kind=vllm", f"place.urls=['{fake.url}']",
                              "rollout.overlong_buffer=16", "checkpoint.every=0")  # fmt: skip
        write_config(config, tmp_path / "recipe.yaml")
        words = ["train", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run"), "--quiet"]
        done = subprocess.run(
            [sys.executable, "-m", "groupwise", *words, "--nproc", "2"],
            capture_output=True, text=True, timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert len(read_metrics(tmp_path / "run")) == 2
    # Before training and after each update, by one rank alone.
    assert fake.engine.calls.count("groupwise_reload") == 3
    trained = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert all(torch.equal(fake.engine.weights[name], w) for name, w in trained.items())
