"""A worker over real HTTP: the engine's own answers, and a reason for everything it refuses."""

import http.client
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

from groupwise.config import AdapterSettings, Config, EngineSettings
from groupwise.errors import ConfigError, ModelError
from groupwise.policy.load import Policy
from groupwise.remote.client import ServerUnavailable
from groupwise.remote.fingerprint import WorkerFingerprint, worker_difference, worker_fingerprint
from groupwise.remote.payload import WeightsStream, trained_weights
from groupwise.remote.worker_client import WorkerClient, WorkersEngine
from groupwise.remote.worker_payload import GenerateRequest, RunSettings, encode_request
from groupwise.rollout.native.engine import NativeEngine
from groupwise.types import Request, Sampling
from rollout_workers import TOKEN, Running, in_thread, tiny
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
    workers = {"urls": urls, "max_staleness": stale, "timeout": 20}
    return Config.model_validate({"workers": workers, **more})


def engine(running: Running, policy: Policy, **more: Any) -> WorkersEngine:
    return WorkersEngine(policy, config(running.url, **more))


def worker(running: Running, token: str = TOKEN) -> WorkerClient:
    return WorkerClient(running.url, token, "GROUPWISE_TOKEN", 20.0)


def begun(running: Running, run: str = "a-run-of-the-tests") -> WorkerClient:
    found = worker(running)
    found.begin(RunSettings(run=run, adapter=None, engine=EngineSettings(), compile="none"))
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
    far.sync(version=7)
    near.sync(version=7)
    found = far.generate(REQUESTS, sampling)
    assert found == near.generate(REQUESTS, sampling)
    assert {c.version for group in found for c in group} == {7}


def test_weights_that_are_published_again_are_sampled_from(running: Running) -> None:
    policy = random_policy(seed=1)
    far = engine(running, policy)
    before = far.generate(REQUESTS, Sampling(12))
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(0.9)
    assert far.generate(REQUESTS, Sampling(12)) == before  # not before they are published
    far.sync(version=1)
    after = far.generate(REQUESTS, Sampling(12))
    near = NativeEngine(policy, 256)
    near.sync(version=1)
    assert after == near.generate(REQUESTS, Sampling(12)) != before


def test_stale_engines_publish_copies_that_training_does_not_reach(running: Running) -> None:
    policy = random_policy(seed=1)
    far = engine(running, policy, stale=2)
    copied = far.copy_weights()
    before = {name: weight.clone() for name, weight in copied.items()}
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(1)
    assert all(torch.equal(copied[name], before[name]) for name in before)
    live = engine(running, policy).copy_weights()
    own = dict(policy.model.named_parameters())
    assert all(live[name].data_ptr() == own[name].data_ptr() for name in live)


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
        far.sync(version=0)
        assert far.generate(asked, Sampling(8)) == near.generate(asked, Sampling(8))
        assert set(trained_weights(server.worker.policy)) == set(trained_weights(policy))
        assert (
            WeightsStream(trained_weights(policy)).length
            < 0.2 * WeightsStream(dict(tiny().model.named_parameters())).length
        )
        # A run without an adapter takes the worker and changes the model below. The first takes
        # it back, with a warning, and finds its own model there.
        other = engine(server, random_like_tiny(), compile="none")
        other.sync(version=0)
        assert far.generate(asked, Sampling(8)) == near.generate(asked, Sampling(8))
        assert "another run has begun with it since" in caplog.text


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
        worker(running, "wrong" * 5).generate(
            GenerateRequest(tuple(REQUESTS), Sampling(4), "run", 0), vocab=61
        )


def test_who_asks_for_other_weights_is_told_which_there_are(running: Running) -> None:
    asked = GenerateRequest(tuple(REQUESTS), Sampling(4), "a-run-of-the-tests", 3)
    mine = begun(running)
    with pytest.raises(ServerUnavailable, match="weights of version 3, and has none"):
        mine.generate(asked, 61)
    weights = trained_weights(random_policy())
    mine.send_weights(weights, asked.run, 3)
    assert len(mine.generate(asked, 61)) == 3
    with pytest.raises(ServerUnavailable, match="weights of version 4, and has 3"):
        mine.generate(replace(asked, version=4), 61)
    begun(running, "another-run-of-the-tests")
    for work in (
        lambda: mine.generate(asked, 61),
        lambda: mine.send_weights(weights, asked.run, 4),
    ):
        with pytest.raises(ServerUnavailable, match="another run has begun"):
            work()


def test_torn_weights_leave_none_and_the_worker_well(running: Running) -> None:
    mine, run = begun(running), "a-run-of-the-tests"
    weights = trained_weights(random_policy(seed=5))
    mine.send_weights(weights, run, 1)
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
        mine.generate(GenerateRequest(tuple(REQUESTS), Sampling(4), run, 1), 61)
    assert send(running, "PUT", "/weights?run=x&version=two", whole)[0] == 400
    # Who hangs up in the middle is no weights either.
    parts = urlsplit(running.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
    connection.putrequest("PUT", path)
    connection.putheader("authorization", f"Bearer {TOKEN}")
    connection.putheader("content-length", str(len(whole)))
    connection.endheaders(whole[:5000])
    connection.close()
    mine.send_weights(weights, run, 2)
    assert running.worker.version == 2
    assert len(mine.generate(GenerateRequest(tuple(REQUESTS), Sampling(4), run, 2), 61)) == 3


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
    far.sync(version=0)
    before = numbers()
    found = far.generate(REQUESTS, Sampling(6))
    gained = {key: value - before.get(key, 0) for key, value in numbers().items()}
    tokens = sum(len(c.tokens) for group in found for c in group)
    assert gained["groupwise_rollouts_tokens_total"] == tokens
    assert gained["groupwise_rollouts_questions_total"] == 6
    assert gained["groupwise_rollouts_passes_total"] == 1


def test_another_model_another_engine_and_no_token_are_refused(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"another model than this run: its weights have other"):
        engine(running, random_policy("qwen2"))
    with pytest.raises(ModelError, match="vocabulary of 61 tokens"):
        engine(running, tiny())
    with pytest.raises(ConfigError, match="leave workers out"):
        WorkersEngine(random_policy(), config(running.url, engine={"kind": "vllm"}))
    with pytest.raises(ModelError, match=r"no rollout worker is left .*refused.*workers\.urls"):
        WorkersEngine(random_policy(), config("http://127.0.0.1:1"))
    monkeypatch.setattr(WorkerClient, "request", lambda *_, **__: b"<html>")
    with pytest.raises(ModelError, match="not as a rollout worker"):
        engine(running, random_policy())
    monkeypatch.delenv("GROUPWISE_TOKEN")
    with pytest.raises(ConfigError, match=r"workers\.urls needs .*export GROUPWISE_TOKEN="):
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
