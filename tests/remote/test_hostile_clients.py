"""Clients that hang, trickle, flood or lie: everybody else is served, and memory stays bounded."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

import reference_servers
import rollout_workers
from clients import send_weights, wait
from groupwise.config.engine import AutoEngine
from groupwise.policy.weights import trained_weights
from groupwise.remote import guard, running, worker_model
from groupwise.remote.payload import WeightsStream
from groupwise.remote.reference_payload import LogprobsRequest, encode_request
from groupwise.remote.worker_client import WorkerClient
from groupwise.remote.worker_payload import RunSettings
from serving import TOKEN
from small_models import random_groups, random_policy

BEARER = {"Authorization": f"Bearer {TOKEN}"}
RUN = "a-run-of-the-tests"


@pytest.fixture(scope="module")
def reference() -> Iterator[str]:
    with reference_servers.in_thread(random_policy(), queue_size=8) as server:
        yield server.url


@pytest.fixture(scope="module")
def worker() -> Iterator[str]:
    with rollout_workers.in_thread(lambda adapter: random_policy(layout="padded")) as server:
        yield server.url


def connect(url: str, sent: bytes) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.create_connection((str(parts.hostname), parts.port), timeout=20)
    connection.sendall(sent)
    return connection


def ask(url: str, method: str = "GET", path: str = "/model", **more: Any) -> httpx2.Response:
    return httpx2.request(method, url + path, headers=BEARER, timeout=20, **more)


def everything_from(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(4096), b""))


def closed(connection: socket.socket) -> bool:
    """Whether the server has ended it, within the socket's own time-out."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


HALF = {
    "nothing": b"",
    "half a head": b"POST /logprobs HTTP/1.1\r\nHost: x\r\nX-",
    "a head without the token": b"POST /logprobs HTTP/1.1\r\nContent-Length: 999\r\n\r\n",
    "a body that does not come": (
        f"POST /logprobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN[:-1]}x\r\n"
        "Content-Length: 999\r\n\r\n12345"
    ).encode(),
}


@pytest.mark.parametrize("kind", HALF)
def test_40_half_open_connections_without_a_token_cost_nobody_a_reply(
    reference: str, kind: str
) -> None:
    open_ones = [connect(reference, HALF[kind]) for _ in range(40)]
    try:
        assert {ask(reference).status_code for _ in range(5)} == {200}
        body = encode_request(LogprobsRequest(tuple(random_groups(1, 2)), 1.0, "padded", True))
        assert ask(reference, "POST", "/logprobs", content=body).status_code == 200
    finally:
        for connection in open_ones:
            connection.close()


def test_a_head_has_a_deadline_and_silent_connections_have_a_cap(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MAX_SILENT", 8)
    began = time.monotonic()
    many = [connect(reference, b"GET /mod") for _ in range(20)]
    assert ask(reference).status_code == 200
    assert all(closed(connection) for connection in many[:11])  # the oldest make room
    assert time.monotonic() - began < running.HEAD_SECONDS / 2  # at once, not at their deadline
    assert many[-1].getpeername()
    for connection in many:
        connection.close()
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.3)
    began = time.monotonic()
    late = connect(reference, b"GET /model HTTP/1.1\r\n")
    for _ in range(3):  # a byte now and then does not help
        time.sleep(0.05)
        late.sendall(b"X")
    assert closed(late) and time.monotonic() - began < 5


def test_a_body_that_stalls_or_trickles_is_given_up(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(guard, "DISCARD_SECONDS", 0.1)
    head = f"POST /logprobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += "Content-Length: 1000\r\n\r\n"
    stalled = connect(reference, head.encode() + b"12345")
    assert b" 408 " in stalled.recv(4096)
    trickling = connect(reference, head.encode())
    for _ in range(10):
        time.sleep(0.1)
        try:
            trickling.sendall(b"1")
        except (BrokenPipeError, ConnectionResetError):
            break
    assert b" 408 " in trickling.recv(4096)
    stalled.close()
    trickling.close()


def test_of_requests_in_progress_there_is_a_cap_that_says_when_to_come_back(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = f"POST /logprobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    full = [connect(reference, f"{head}Content-Length: 9\r\n\r\n".encode()) for _ in range(40)]
    deadline = time.monotonic() + 20
    while (reply := ask(reference)).status_code != 503 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
    assert httpx2.get(f"{reference}/health").status_code == 200
    for connection in full:
        connection.close()
    while ask(reference).status_code != 200 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ask(reference).status_code == 200


def test_a_stalled_upload_holds_up_nobody_and_health_tells(
    worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_model, "UNWELL_SECONDS", 0.2)
    monkeypatch.setattr(guard, "STALL_SECONDS", 2.0)
    monkeypatch.setattr(guard, "DISCARD_SECONDS", 0.1)
    mine = WorkerClient(worker, TOKEN, "GROUPWISE_TOKEN", 20.0)
    settings = RunSettings(run=RUN, adapter=None, engine=AutoEngine(), compile="none")
    wait(mine.begin(settings))
    weights = trained_weights(random_policy(seed=5))
    whole = b"".join(WeightsStream(weights))
    head = f"PUT /weights?run={RUN}&version=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}"
    head += f"\r\nContent-Length: {len(whole)}\r\n\r\n"
    stalled = connect(worker, head.encode() + whole[:5000])
    deadline = time.monotonic() + 1.5
    while (health := httpx2.get(f"{worker}/health")).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert health.status_code == 503 and "upload of weights has stalled" in health.text
    began = time.monotonic()
    wait(mine.begin(settings))  # the model is free for others all the time
    send_weights(mine, weights, RUN, 2)
    assert time.monotonic() - began < 1.5
    assert httpx2.get(f"{worker}/health").status_code == 200
    assert b" 408 " in stalled.recv(4096)  # and the stalled one ends
    assert ask(worker).json() == {"vocab": 61, "run": RUN, "version": 2}
    stalled.close()


def test_an_upload_that_another_replaced_changes_nothing_any_more(worker: str) -> None:
    mine = WorkerClient(worker, TOKEN, "GROUPWISE_TOKEN", 20.0)
    wait(mine.begin(RunSettings(run=RUN, adapter=None, engine=AutoEngine(), compile="none")))
    weights = trained_weights(random_policy(seed=5))
    whole = b"".join(WeightsStream(weights))
    head = f"PUT /weights?run={RUN}&version=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}"
    head += f"\r\nContent-Length: {len(whole)}\r\n\r\n"
    slow = connect(worker, head.encode() + whole[:5000])
    time.sleep(0.2)
    send_weights(mine, weights, RUN, 2)
    slow.sendall(whole[5000:])
    reply = everything_from(slow)
    assert b" 409 " in reply and b"another upload has begun" in reply
    assert ask(worker).json()["version"] == 2
    slow.close()


def test_an_adapter_of_a_monstrous_rank_is_refused_before_memory_is_taken(worker: str) -> None:
    settings = {
        "run": RUN,
        "adapter": {"rank": 1e9},
        "engine": AutoEngine().model_dump(mode="json"),
        "compile": "none",
    }
    reply = ask(worker, "POST", "/begin", content=json.dumps(settings))
    assert reply.status_code == 400 and "adapter.rank=1000000000" in reply.text


@pytest.mark.parametrize("metadata", [None, 7, "x", [], {"temperature": 1}, {"a": None}])
def test_metadata_that_is_no_text_is_a_bad_request(
    reference: str, worker: str, metadata: Any
) -> None:
    head = json.dumps({"__metadata__": metadata}).encode()
    body = len(head).to_bytes(8, "little") + head
    assert ask(reference, "POST", "/logprobs", content=body).status_code == 400
    assert ask(worker, "POST", "/generate", content=body).status_code == 400


def test_malformed_and_oversized_requests_are_refused(reference: str, worker: str) -> None:
    deep = b"[" * 4000
    nested = len(deep).to_bytes(8, "little") + deep
    for url, path in ((reference, "/logprobs"), (worker, "/generate"), (worker, "/begin")):
        for body in (b"", b"\xff" * 4096, nested, b"{" * 70_000):
            assert ask(url, "POST", path, content=body).status_code in (400, 413)

    def endless() -> Iterator[bytes]:
        while True:
            yield b"\x00" * 65536

    for url, path in ((reference, "/logprobs"), (worker, "/begin")):
        with suppress(httpx2.TransportError):  # closed while we were still sending
            assert ask(url, "POST", path, content=endless()).status_code == 413
        assert ask(url).status_code == 200
    long = connect(reference, b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n")
    assert closed(long)
    long.close()
