"""A reference server over real HTTP: the same numbers, and a reason for everything it refuses."""

import http.client
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

from clients import wait
from groupwise.config import AdapterSettings, ReferenceSettings
from groupwise.errors import ConfigError, ModelError
from groupwise.policy.load import load_policy
from groupwise.policy.logprobs import batch_logprobs
from groupwise.policy.reference import Reference
from groupwise.remote import guard
from groupwise.remote import reference_server as server_module
from groupwise.remote.client import ServerUnavailable
from groupwise.remote.fingerprint import (
    ModelFingerprint,
    from_tensors,
    model_difference,
    model_fingerprint,
    to_tensors,
)
from groupwise.remote.reference_client import ReferenceClient, RemoteReference
from groupwise.remote.reference_payload import LogprobsRequest, encode_request
from groupwise.remote.running import check_token, is_loopback
from groupwise.types import Group
from reference_servers import TOKEN, Running, in_thread
from small_models import random_groups, random_policy
from updates import reference_logprobs

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with in_thread(random_policy()) as server:
        yield server


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPWISE_TOKEN", TOKEN)


def settings(*urls: str, **more: Any) -> ReferenceSettings:
    return ReferenceSettings(kind="server", urls=urls, **more)


def remote(running: Running, layout: str = "auto", **more: Any) -> RemoteReference:
    return RemoteReference(settings(running.url, **more), random_policy(layout=layout), fresh=True)


def send(
    running: Running, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    parts = urlsplit(running.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
    given = {
        "authorization": f"Bearer {TOKEN}",
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    connection.request(method, path, body, given)
    response = connection.getresponse()
    found = response.status, response.headers, response.read()
    connection.close()
    return found


def spread(groups: list[Group]) -> list[Group]:
    """Every answer at a temperature of its own."""
    return [
        replace(
            group,
            completions=tuple(
                replace(c, temperature=0.5 + 0.3 * place)
                for place, c in enumerate(group.completions)
            ),
        )
        for group in groups
    ]


@pytest.mark.parametrize("layout", ["shared_prefix", "padded"])
@pytest.mark.parametrize("tokens", [12, 40, 4096])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_are_those_in_process_bit_for_bit(
    running: Running, layout: str, tokens: int, temperature: float
) -> None:
    groups = random_groups(5, 4, seed=tokens, empty=True)
    local = Reference(random_policy(layout=layout), ReferenceSettings())
    for asked in (groups, spread(groups)):
        expected = reference_logprobs(local, asked, temperature, tokens)
        found = reference_logprobs(remote(running, layout), asked, temperature, tokens)
        assert found == expected and len(found) == 20


def test_nothing_but_health_answers_without_the_token(running: Running) -> None:
    assert send(running, "GET", "/health", authorization="")[0] == 200
    for path in ("/model", "/metrics"):
        for header in (
            "",
            "Bearer",
            "Bearer wrong",
            f"Basic {TOKEN}",
            f"Bearer {TOKEN}x",
            "Bearer é",
        ):
            status, headers, text = send(running, "GET", path, authorization=header)
            assert (
                status == 401 and headers["www-authenticate"] == "Bearer" and TOKEN not in str(text)
            )
    assert send(running, "POST", "/logprobs", b"x", authorization="Bearer wrong")[0] == 401
    assert send(running, "GET", "/model", authorization=f"bearer {TOKEN}")[0] == 200


def test_a_refusal_waits_for_nothing_once_the_body_is_there(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "DISCARD_SECONDS", 300.0)  # longer than a client waits
    assert send(running, "POST", "/logprobs", b"no safetensors")[0] == 400


def test_bad_bodies_get_a_reason_and_do_no_harm(running: Running) -> None:
    good = encode_request(LogprobsRequest(tuple(random_groups(2, 2)), 1.0, "padded", True))
    status, _, text = send(running, "POST", "/logprobs", b"\x80\x04pickle?")
    assert status == 400 and b"safetensors" in text
    most = 16 * 4096 + 8192
    status, _, text = send(running, "POST", "/logprobs", b"\x00" * (most + 1))
    assert status == 413 and str(most).encode() in text
    status, _, _ = send(
        running, "POST", "/logprobs", iter([b"\x00" * 40_000] * 3)
    )  # no length given
    assert status == 413
    status, _, text = send(running, "POST", "/logprobs", good, content_length="1" * 30)
    assert status == 400
    assert send(running, "GET", "/logprobs")[0] == 405
    rng = random.Random(0)
    for _ in range(60):
        damaged = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        assert send(running, "POST", "/logprobs", bytes(damaged))[0] in (200, 400, 413)
    assert send(running, "POST", "/logprobs", good)[0] == 200
    assert send(running, "GET", "/health")[0] == 200


def test_metrics_count_what_was_done(running: Running) -> None:
    def numbers() -> dict[str, float]:
        text = send(running, "GET", "/metrics")[2].decode()
        pairs = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    question = LogprobsRequest(tuple(random_groups(2, 3)), 1.0, "shared_prefix", True)
    name = "groupwise_reference_"
    before = numbers()
    assert send(running, "POST", "/logprobs", encode_request(question))[0] == 200
    after = numbers()
    gained = {key: after[key] - before.get(key, 0) for key in after}
    assert gained[f"{name}tokens_total"] == question.tokens
    assert gained[f"{name}passes_total"] == gained[f"{name}questions_total"] == 1
    assert gained[f'{name}requests_total{{status="200"}}'] == 2  # and the page itself
    assert after[f"{name}queue_length"] == 0 and gained[f"{name}seconds_total"] > 0


def test_a_full_queue_says_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, entered = threading.Event(), threading.Event()

    def held(*args: Any, **kwargs: Any) -> Any:
        entered.set()
        assert opened.wait(20)
        return batch_logprobs(*args, **kwargs)

    groups = random_groups(1, 2)
    body = encode_request(LogprobsRequest(tuple(groups), 1.0, "padded", True))
    with in_thread(random_policy(), queue_size=1) as server:
        reference = remote(server, timeout=20)
        monkeypatch.setattr(server_module, "batch_logprobs", held)
        asking = [threading.Thread(target=send, args=(server, "POST", "/logprobs", body))]
        asking[0].start()
        assert entered.wait(20)
        asking.append(threading.Thread(target=send, args=(server, "POST", "/logprobs", body)))
        asking[1].start()
        deadline = time.monotonic() + 20
        while server.model.thread.waiting < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        status, headers, _ = send(server, "POST", "/logprobs", body)
        assert status == 503 and headers["retry-after"] == "1"
        threading.Timer(0.5, opened.set).start()
        assert len(reference_logprobs(reference, groups, 1.0, 4096)) == 2  # waits, asks again
        for thread in asking:
            thread.join()


def test_who_hangs_up_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, entered = threading.Event(), threading.Event()

    def held(*args: Any, **kwargs: Any) -> Any:
        entered.set()
        assert opened.wait(20)
        return batch_logprobs(*args, **kwargs)

    question = LogprobsRequest(tuple(random_groups(1, 2)), 1.0, "padded", True)
    with in_thread(random_policy()) as server:
        monkeypatch.setattr(server_module, "batch_logprobs", held)
        impatient = ReferenceClient(server.url, TOKEN, "GROUPWISE_TOKEN", timeout=0.3)
        for _ in range(2):
            with pytest.raises(ServerUnavailable, match=r"no reply within 0\.3 s"):
                wait(impatient.logprobs(question, ""))
        deadline = time.monotonic() + 20
        while server.model.thread.counts.requests[499] < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        opened.set()
    assert server.model.thread.counts.passes == 1  # the first was on its way, the second was not


def test_out_of_memory_on_the_server_reaches_the_trainer_as_such(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = remote(running)

    def full(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError("CUDA out of memory")

    monkeypatch.setattr(server_module, "batch_logprobs", full)
    with pytest.raises(MemoryError, match="CUDA out of memory"):
        reference_logprobs(reference, random_groups(2, 2), 1.0, 4096)


def test_a_wrong_token_names_the_variable(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROUPWISE_TOKEN", "not-the-right-one")
    with pytest.raises(ModelError, match="refuses the token: set GROUPWISE_TOKEN"):
        remote(running)
    monkeypatch.delenv("GROUPWISE_TOKEN")
    with pytest.raises(ConfigError, match="export GROUPWISE_TOKEN="):
        remote(running)


def test_another_model_is_refused(running: Running) -> None:
    other = random_policy(seed=1)
    with pytest.raises(ModelError, match="another model than this run started from: its weights"):
        RemoteReference(settings(running.url), other, fresh=True)


def copy(fingerprint: ModelFingerprint, **changed: Any) -> ModelFingerprint:
    return fingerprint.model_copy(update=changed)


def test_what_tells_models_apart() -> None:
    ours = model_fingerprint(random_policy())
    assert model_difference(ours, model_fingerprint(random_policy())) is None
    nudged = random_policy()
    nudged.model.get_output_embeddings().weight.data[0, 0] += 1e-6
    assert model_difference(ours, model_fingerprint(nudged)) == "its weights are others"
    assert "vocabulary of 7" in str(model_difference(ours, copy(ours, vocab=7)))
    # In another precision weights cannot be compared, log-probs can.
    rounded = copy(ours, dtype="bfloat16", weights="0" * 64)
    assert model_difference(ours, rounded) is None
    off = copy(rounded, probe=tuple(p - 0.3 for p in ours.probe))
    assert "differ by 0.3" in str(model_difference(ours, off))
    nan = copy(rounded, probe=(float("nan"),) * len(ours.probe))
    assert model_difference(ours, nan) is not None
    assert from_tensors(to_tensors(ours)) == ours
    assert from_tensors(to_tensors(copy(ours, weights=None))).weights is None


def test_an_adapter_that_is_new_leaves_the_model_what_it_was() -> None:
    plain = model_fingerprint(load_policy("tiny", CPU, torch.float32))
    adapted = load_policy("tiny", CPU, torch.float32, adapter=AdapterSettings(rank=2))
    assert plain.weights is not None and model_fingerprint(adapted).weights == plain.weights
    with torch.no_grad():
        for weight in adapted.adapter.weights().values() if adapted.adapter else ():
            weight.fill_(0.1)
    assert (
        model_difference(plain, model_fingerprint(adapted)) is None
    )  # the base below it is still the same


def test_quantized_weights_are_compared_by_what_they_say() -> None:
    pytest.importorskip("bitsandbytes")
    plain = model_fingerprint(load_policy("tiny", CPU, torch.float32))
    packed = [
        model_fingerprint(load_policy("tiny", CPU, torch.float32, quantization="int8"))
        for _ in "ab"
    ]
    assert packed[0].weights is None and packed[0].dtype == "float32 in 8 bits"
    assert model_difference(*packed) is None and model_difference(plain, packed[0]) is None
    other = copy(packed[0], probe=tuple(p + 0.5 * (-1) ** i for i, p in enumerate(plain.probe)))
    assert "differ by 0.5 on average" in str(model_difference(plain, other))


def test_answers_longer_than_the_server_takes_say_how_to_start_it() -> None:
    with in_thread(random_policy(), tokens=6) as server:
        reference = remote(server)
        with pytest.raises(ModelError, match="start it with --tokens"):
            reference_logprobs(reference, random_groups(2, 2), 1.0, 4096)


def test_nobody_there_and_somebody_else_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = "http://127.0.0.1:1"
    with pytest.raises(ModelError, match=r"no reference server is left .*refused"):
        RemoteReference(settings(nowhere, timeout=1), random_policy(), fresh=True)
    for page in (b"<html>", b"[]", b"{}", b'{"tokens": 5}', b"[" * 60_000):

        async def reply(*_: Any, page: bytes = page, **__: Any) -> bytes:
            return page

        monkeypatch.setattr(ReferenceClient, "request", reply)
        with pytest.raises(ModelError, match="not as a reference server"):
            RemoteReference(settings(nowhere), random_policy(), fresh=True)


@pytest.mark.parametrize("token", ["short", "with a space in it all", "é" * 20, ""])
def test_tokens_that_cannot_be_used_are_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="16 characters"):
        check_token(token)


def test_loopback_is_told_from_the_world() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org")
