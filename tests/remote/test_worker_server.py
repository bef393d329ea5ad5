"""A worker over real HTTP: the engine's own answers, and a reason for everything it refuses."""

import asyncio
import http.client
import pathlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

from clients import sampled, send_weights, wait
from engines import generate, sync
from groupwise.config import AdapterSettings, Config
from groupwise.config.engine import (
    AutoEngine,
    NativeEngineSettings,
    TransformersEngineSettings,
)
from groupwise.errors import ConfigError, ModelError
from groupwise.load import worker_engine
from groupwise.policy.load import Policy
from groupwise.policy.weights import trained_weights
from groupwise.remote.client import ServerUnavailable
from groupwise.remote.event_loop import client_loop
from groupwise.remote.fingerprint import WorkerFingerprint, worker_difference, worker_fingerprint
from groupwise.remote.payload import BadPayload, WeightsStream
from groupwise.remote.worker_client import WorkerClient, WorkersEngine
from groupwise.remote.worker_model import WorkerModel
from groupwise.remote.worker_payload import GenerateRequest, RunSettings, encode_request
from groupwise.remote.worker_server import worker_app
from groupwise.rollout.native.engine import NativeEngine
from groupwise.types import Completion, Request, Sampling
from rollout_workers import TOKEN, Running, in_thread, tiny
from serving import served
from small_models import random_policy

REQUESTS = [Request((5, 6, 7), (11, 12, 13)), Request((9,), (2**63 + 5,)), Request((4, 4), (1, 2))]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with in_thread(lambda adapter: random_policy(layout="padded")) as server:
        yield server


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPWISE_TOKEN", TOKEN)


def config(*urls: str, stale: int = 0, **more: Any) -> Config:
    place = {"kind": "servers", "urls": urls, "timeout": 20}
    return Config.model_validate({"place": place, **more})


def engine(running: Running, policy: Policy, **more: Any) -> WorkersEngine:
    return WorkersEngine(policy, config(running.url, **more))


def worker(running: Running, token: str = TOKEN) -> WorkerClient:
    return WorkerClient(running.url, token, "GROUPWISE_TOKEN", 20.0)


def begun(running: Running, run: str = "a-run-of-the-tests") -> WorkerClient:
    found = worker(running)
    wait(found.begin(RunSettings(run=run, adapter=None, engine=AutoEngine(), compile="none")))
    return found


@pytest.mark.parametrize("kind", ["native", "transformers"])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(12),
        Sampling(9, temperature=0.7, top_p=0.9, top_k=20, stop=("7",)),
        Sampling(9, temperature=0.0, repetition_penalty=1.3),
    ],
)
def test_answers_are_those_of_the_engine_in_process_bit_for_bit(
    running: Running, kind: str, sampling: Sampling
) -> None:
    """By the trainer's weights, which are others than those that the worker was started with."""
    from groupwise.load import make_engine

    policy = random_policy(seed=3)
    settings = {"engine": {"kind": kind, "max_batch": 4}, "compile": "none"}
    far, near = engine(running, policy, **settings), make_engine(policy, Config(**settings))  # pyright: ignore[reportArgumentType]
    sync(far, 7)
    sync(near, 7)
    found = generate(far, REQUESTS, sampling)
    assert found == generate(near, REQUESTS, sampling)
    assert {c.version for group in found for c in group} == {7}


@pytest.mark.parametrize("kind", [NativeEngineSettings, TransformersEngineSettings])
def test_a_worker_without_products_in_8_bits_refuses_a_run_that_samples_so(
    running: Running, kind: type[NativeEngineSettings | TransformersEngineSettings]
) -> None:
    settings = RunSettings(
        run="a-run-in-8-bits", adapter=None, engine=kind(), compile="none", fp8="sampling"
    )
    with pytest.raises(ModelError, match="fp8"):
        wait(worker(running).begin(settings))
    begun(running)


def test_weights_that_are_published_again_are_sampled_from(running: Running) -> None:
    policy = random_policy(seed=1)
    far = engine(running, policy)
    before = generate(far, REQUESTS, Sampling(12))
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(0.9)
    assert generate(far, REQUESTS, Sampling(12)) == before  # not before they are published
    sync(far, 1)
    after = generate(far, REQUESTS, Sampling(12))
    near = NativeEngine(policy, 256)
    sync(near, 1)
    assert after == generate(near, REQUESTS, Sampling(12)) != before


def test_of_an_adapter_only_its_weights_travel(caplog: pytest.LogCaptureFixture) -> None:
    adapter = AdapterSettings(rank=2)
    policy = tiny(adapter)
    with torch.no_grad():
        for weight in trained_weights(policy).values():
            weight.normal_(std=0.05)
    near = NativeEngine(policy, 256)
    with in_thread() as server:
        far = engine(server, policy, adapter={"rank": 2}, compile="none")
        asked = [Request((5, 6, 7), (1, 2))]
        sync(far, 0)
        assert generate(far, asked, Sampling(8)) == generate(near, asked, Sampling(8))
        assert set(trained_weights(server.worker.policy)) == set(trained_weights(policy))
        assert (
            WeightsStream(trained_weights(policy)).length
            < 0.2 * WeightsStream(dict(tiny().model.named_parameters())).length
        )
        # A run without an adapter takes the worker and changes the model below. The first takes
        # it back, with a warning, and finds its own model there.
        other = engine(server, random_like_tiny(), compile="none")
        sync(other, 0)
        assert generate(far, asked, Sampling(8)) == generate(near, asked, Sampling(8))
        assert "another run uses it now" in caplog.text


def random_like_tiny() -> Policy:
    policy = tiny()
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.01)
    return policy


def send(
    running: Running, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, bytes]:
    parts = urlsplit(running.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
    given = {"authorization": f"Bearer {TOKEN}"} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    connection.request(method, path, body, given)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def test_nothing_but_health_answers_without_the_token(running: Running) -> None:
    assert send(running, "GET", "/health", authorization="")[0] == 200
    for method, path in (
        ("GET", "/model"),
        ("GET", "/metrics"),
        ("POST", "/begin"),
        ("POST", "/generate"),
        ("PUT", "/weights?run=x&version=1"),
    ):
        for header in ("", "Bearer wrong", f"Basic {TOKEN}"):
            status, text = send(running, method, path, authorization=header)
            assert status == 401 and TOKEN not in str(text)
    with pytest.raises(ModelError, match="refuses the token: set GROUPWISE_TOKEN"):
        sampled(
            worker(running, "wrong" * 5),
            GenerateRequest(tuple(REQUESTS), Sampling(4), "run", 0),
            vocab=61,
        )


def test_who_asks_for_other_weights_is_told_which_there_are(running: Running) -> None:
    asked = GenerateRequest(tuple(REQUESTS), Sampling(4), "a-run-of-the-tests", 3)
    mine = begun(running)
    with pytest.raises(ServerUnavailable, match="weights of version 3, and has none"):
        sampled(mine, asked, 61)
    weights = trained_weights(random_policy())
    send_weights(mine, weights, asked.run, 3)
    assert len(sampled(mine, asked, 61)) == 3
    with pytest.raises(ServerUnavailable, match="weights of version 4, and has 3"):
        sampled(mine, replace(asked, version=4), 61)
    begun(running, "another-run-of-the-tests")
    for work in (
        lambda: sampled(mine, asked, 61),
        lambda: send_weights(mine, weights, asked.run, 4),
    ):
        with pytest.raises(ServerUnavailable, match="another run uses it"):
            work()


def test_torn_weights_leave_none_and_the_worker_well(running: Running) -> None:
    mine, run = begun(running), "a-run-of-the-tests"
    weights = trained_weights(random_policy(seed=5))
    send_weights(mine, weights, run, 1)
    whole = b"".join(WeightsStream(weights))
    path = f"/weights?run={run}&version=2"
    for wrong, status, says in (
        (whole[: len(whole) // 2], 400, b"ended before the weights"),
        (whole + b"x", 400, b"more bytes"),
        ((200).to_bytes(8, "little") + b"{" * 200, 400, b"no safetensors"),
        (b"", 400, b"ended before"),
    ):
        found, text = send(running, "PUT", path, wrong)
        assert found == status and says in text
        assert running.worker.version is None
    with pytest.raises(ServerUnavailable, match="and has none"):
        sampled(mine, GenerateRequest(tuple(REQUESTS), Sampling(4), run, 1), 61)
    assert send(running, "PUT", "/weights?run=x&version=two", whole)[0] == 400
    # Who hangs up in the middle is no weights either.
    parts = urlsplit(running.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
    connection.putrequest("PUT", path)
    connection.putheader("authorization", f"Bearer {TOKEN}")
    connection.putheader("content-length", str(len(whole)))
    connection.endheaders(whole[:5000])
    connection.close()
    send_weights(mine, weights, run, 2)
    assert running.worker.version == 2
    assert len(sampled(mine, GenerateRequest(tuple(REQUESTS), Sampling(4), run, 2), 61)) == 3


def test_bad_requests_get_a_reason(running: Running) -> None:
    good = encode_request(GenerateRequest(tuple(REQUESTS), Sampling(4), "a-run-of-the-tests", 0))
    assert send(running, "POST", "/generate", good[:50])[0] == 400
    status, text = send(running, "POST", "/begin", b'{"run": "short"}')
    assert status == 400 and b"version of groupwise" in text
    status, text = send(running, "POST", "/begin", b"x" * 100_000)
    assert status == 413
    assert send(running, "GET", "/generate")[0] == 405
    assert send(running, "GET", "/health")[0] == 200


def test_metrics_count_answers_and_tokens(running: Running) -> None:
    def numbers() -> dict[str, float]:
        text = send(running, "GET", "/metrics")[1].decode()
        pairs = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    far = engine(running, random_policy())
    sync(far, 0)
    before = numbers()
    found = generate(far, REQUESTS, Sampling(6))
    gained = {key: value - before.get(key, 0) for key, value in numbers().items()}
    tokens = sum(len(c.tokens) for group in found for c in group)
    assert gained["groupwise_rollouts_tokens_total"] == tokens
    assert gained["groupwise_rollouts_questions_total"] == 6
    assert gained["groupwise_rollouts_passes_total"] == len(REQUESTS)


def test_another_model_another_engine_and_no_token_are_refused(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"another model than this run: its weights have other"):
        engine(running, random_policy("qwen2"))
    with pytest.raises(ModelError, match="vocabulary of 61 tokens"):
        engine(running, tiny())
    with pytest.raises(ModelError, match="does not run vLLM: start `groupwise serve vllm"):
        WorkersEngine(random_policy(), config(running.url, engine={"kind": "vllm"}))
    with pytest.raises(ModelError, match=r"no rollout worker is left .*refused.*place\.urls"):
        WorkersEngine(random_policy(), config("http://127.0.0.1:1"))

    async def html(*_: Any, **__: Any) -> bytes:
        return b"<html>"

    monkeypatch.setattr(WorkerClient, "request", html)
    with pytest.raises(ModelError, match="not as a rollout worker"):
        engine(running, random_policy())
    monkeypatch.delenv("GROUPWISE_TOKEN")
    with pytest.raises(ConfigError, match=r"place\.urls needs .*export GROUPWISE_TOKEN="):
        engine(running, random_policy())


def copy(fingerprint: Any, **changed: Any) -> Any:
    return fingerprint.model_copy(update=changed)


def test_what_tells_models_apart() -> None:
    ours = worker_fingerprint(tiny())
    assert (
        WorkerFingerprint.model_validate_json(ours.model_dump_json()) == ours
        and worker_difference(ours, worker_fingerprint(tiny())) is None
    )
    assert "end at the tokens" in str(worker_difference(ours, copy(ours, eos_ids=(1, 2))))
    assert "other text" in str(worker_difference(ours, copy(ours, text="x")))
    adapted = worker_fingerprint(tiny(AdapterSettings(rank=2)))
    assert (
        WorkerFingerprint.model_validate_json(adapted.model_dump_json()) == adapted
        and adapted.base is not None
    )
    assert worker_difference(adapted, worker_fingerprint(tiny(AdapterSettings(rank=2)))) is None
    assert "shapes" in str(
        worker_difference(adapted, worker_fingerprint(tiny(AdapterSettings(rank=3))))
    )
    changed = copy(adapted, base=copy(adapted.base, weights="0" * 64))
    assert worker_difference(adapted, changed) == "its weights are others"


def test_a_trained_adapter_is_still_on_the_model_that_it_was() -> None:
    fresh, trained = tiny(AdapterSettings(rank=2)), tiny(AdapterSettings(rank=2))
    with torch.no_grad():
        for weight in trained_weights(trained).values():
            weight.fill_(0.1)
    assert worker_difference(worker_fingerprint(trained), worker_fingerprint(fresh)) is None


def rounded(seed: int = 0) -> Policy:
    """With 16-bit weights, of which an update changes few."""
    policy = random_policy(seed=seed, layout="padded")
    policy.model.to(torch.bfloat16)
    return policy


def test_later_weights_travel_as_differences_and_arrive_to_the_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths: list[str] = []
    original = WorkerClient.request

    async def seen(self: Any, method: str, path: str, *more: Any, **options: Any) -> bytes:
        paths.append(path.partition("&version=")[2])
        return await original(self, method, path, *more, **options)

    monkeypatch.setattr(WorkerClient, "request", seen)
    policy = rounded(seed=1)
    with in_thread(lambda adapter: rounded()) as server:
        far = engine(server, policy)
        for version in range(4):
            sync(far, version)
            there = trained_weights(server.worker.policy)
            assert all(torch.equal(w, there[n]) for n, w in trained_weights(policy).items())
            with torch.no_grad():
                for weight in policy.model.parameters():
                    weight.view(-1)[version::97] += 1
                if version == 2:  # not what it was sent: the next difference is refused
                    there["model.norm.weight"][3] += 1
        generate(far, REQUESTS, Sampling(4))
    assert [path for path in paths if path] == ["0", "1&base=0", "2&base=1", "3&base=2", "3"]


class GrowingEngine:
    """An answer takes until weights change under it, and is by both."""

    def __init__(self) -> None:
        self.version, self.changed = 0, asyncio.Event()

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        before, changed = self.version, self.changed
        await changed.wait()
        parts = ((0, before), (1, self.version))
        tokens = (5,) * sampling.max_tokens
        answer = Completion(tokens, (-1.0,) * len(tokens), "length", "", before, versions=parts)
        return (answer,) * len(request.keys)

    def load_weights(self, version: int, weights: Any) -> None:
        for _ in weights:
            pass
        self.version = version
        self.changed.set()
        self.changed = asyncio.Event()

    def close(self) -> None:
        """It has nothing."""


def test_in_flight_answers_go_on_while_weights_change_and_say_which_drew_them() -> None:
    policy = random_policy()
    worker = WorkerModel(lambda adapter: random_policy(layout="padded"), lambda *_: GrowingEngine())
    with served(worker_app(worker, 8, TOKEN)) as url:
        far = engine(Running(url, worker), policy, timing={"kind": "in_flight"})
        sync(far, 3)

        async def sampled() -> list[tuple[Completion, ...]]:
            asked = [asyncio.create_task(far.sample(r, Sampling(4))) for r in REQUESTS]
            while sum(server.load for server in far.pool.servers) < 6 or not worker._sampling:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(sync, far, 4)
            return await asyncio.gather(*asked)

        groups = asyncio.run(sampled())
        versions = {(c.version, c.versions) for group in groups for c in group}
        assert versions == {(3, ((0, 3), (1, 4)))}
        # In turn such an answer is none: it is not by the weights that were meant.
        strict = GenerateRequest(tuple(REQUESTS[:1]), Sampling(4), far.settings.run, 4)
        work = client_loop().start(worker_client(url).generate(strict, 61, lambda *_: None))
        while not worker._sampling:
            time.sleep(0.01)
        sync(far, 5)
        with pytest.raises(BadPayload, match=r"by weights \[4, 5\], not by 4"):
            work.result(20)


def test_answers_by_weights_that_were_lost_are_none() -> None:
    worker = WorkerModel(lambda adapter: random_policy(layout="padded"), lambda *_: GrowingEngine())
    weights = trained_weights(random_policy())
    with served(worker_app(worker, 8, TOKEN)) as url:
        server = Running(url, worker)
        mine, run = begun(server), "a-run-of-the-tests"
        send_weights(mine, weights, run, 1)
        asked = GenerateRequest(tuple(REQUESTS), Sampling(4), run, 1)
        for spoil in (
            lambda: send(server, "PUT", f"/weights?run={run}&version=2", b"x" * 100),
            lambda: begun(server, "another-run-of-the-tests"),
        ):
            work = client_loop().start(mine.generate(asked, 61, lambda *_: None))
            while not worker._sampling:
                time.sleep(0.01)
            spoil()
            with pytest.raises(ServerUnavailable, match="or its weights were lost"):
                work.result(20)
            assert not worker._sampling
            begun(server)
            send_weights(mine, weights, run, 1)


def worker_client(url: str) -> WorkerClient:
    return WorkerClient(url, TOKEN, "GROUPWISE_TOKEN", 20.0)


OWN = """
import groupwise
from groupwise.rollout.transformers import TransformersEngine

@groupwise.engine
class Mine(TransformersEngine):
    def __init__(self, policy, config):
        super().__init__(policy, config.engine.max_batch)

class Unmarked(Mine):
    __groupwise_extension__ = None
"""


def test_a_worker_runs_marked_engines_of_a_run_that_it_trusts_and_no_other(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "own_engine.py"
    file.write_text(OWN)

    def run(kind: str) -> RunSettings:
        return RunSettings.model_validate(
            {"run": "a-run-of-tests", "adapter": None, "engine": {"kind": kind}, "compile": "none"}
        )

    policy = random_policy()
    made = worker_engine(policy, run(f"{file}:Mine"), trust_code=True)
    assert type(made).__name__ == "Mine"
    with pytest.raises(ConfigError, match="--trust-code"):
        worker_engine(policy, run(f"{file}:Mine"), trust_code=False)
    for unmarked in (f"{file}:Unmarked", "os:system"):
        with pytest.raises(ConfigError, match="not marked as an engine"):
            worker_engine(policy, run(unmarked), trust_code=True)
