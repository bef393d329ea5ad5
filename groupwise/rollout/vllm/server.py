"""One vLLM server, asked over HTTP: every way in which that fails, as one of two errors.

`Gone`: this server cannot do it now, another may. ModelError: only a person can mend it.

Each question has a connection of its own: next to an answer that costs nothing, closing it tells
vLLM that nobody waits any more, and none is ever found to have been closed while it was idle.
"""

import json
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from groupwise.errors import ModelError
from groupwise.rollout.vllm.weights import Parcel
from groupwise.serve.client import Gone

LONGEST_TEXT = 65536
HEALTH_SECONDS = 5.0
START = "`groupwise serve vllm MODEL`"


@dataclass(frozen=True)
class State:
    """What a server is, and whose weights it has: "RUN:STEP", or vLLM's "default"."""

    version: str
    vocab: int
    layers: int
    width: int
    positions: int
    dtype: str
    logprobs: str
    lora_rank: int


@dataclass(frozen=True)
class VllmServer:
    """VllmServer("http://127.0.0.1:8000", "s3cret...", "GROUPWISE_TOKEN", timeout=300)"""

    url: str
    token: str
    token_env: str
    timeout: float

    def state(self) -> State:
        """Asked at the start and when a server comes back, so it must not take long."""
        timeout = min(self.timeout, 30.0)
        status, content = self._request("GET", "/groupwise/state", None, LONGEST_TEXT, timeout)
        if status == 404:
            raise ModelError(
                f"{self.url} is no server that weights can be pushed to: start it with {START}, or "
                "give `vllm serve` the flags in docs/vllm.md"
            )
        self._check(status, content)
        try:
            data = json.loads(content)
            numbers = {n: data[n] for n in ("vocab", "layers", "width", "positions", "lora_rank")}
            texts = {n: data[n] for n in ("version", "dtype", "logprobs")}
            known = all(type(value) is int for value in numbers.values())
            if not known or not all(isinstance(value, str) for value in texts.values()):
                raise ValueError("numbers and names are expected")
            return State(**numbers, **texts)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ModelError(
                f"{self.url} answers, but not as a server of this version does ({error}); start it "
                f"with {START}"
            ) from error

    def ask(self, question: bytes, most: int) -> bytes:
        """The reply to a question about tokens, of `most` bytes."""
        status, content = self._request("POST", "/inference/v1/generate", question, most)
        if status == 404:
            raise Gone("it does not have the adapter (any more): it was started again")
        self._check(status, content)
        return content

    def push(self, parcel: Parcel, version: str) -> None:
        """Give it weights; when this returns, it answers with them."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(parcel.size + len(parcel.digest)),
            "X-Groupwise-Version": version,
            "X-Groupwise-Kind": parcel.kind,
        }
        body = (part for parts in (parcel.blocks(), [parcel.digest]) for part in parts)
        path = "/groupwise/weights"
        status, content = self._request("PUT", path, body, LONGEST_TEXT, headers=headers)
        if status == 422:
            raise ModelError(f"the vLLM server {self.url} cannot load the weights: {said(content)}")
        self._check(status, content)

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None,
        most: int,
        timeout: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes]:
        given = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        connection = self._connection(timeout or self.timeout)
        try:
            response = _send(connection, method, path, body, given | (headers or {}))
            content = response.read(most + 1)
        except TimeoutError as error:
            raise Gone(self._why_slow(timeout or self.timeout)) from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Gone(reason) from error
        finally:
            connection.close()
        if len(content) > most:
            raise Gone("its reply is too long")
        return response.status, content

    def _connection(self, timeout: float) -> HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None  # the config has checked it
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context)
        return HTTPConnection(parts.hostname, parts.port, timeout=timeout)

    def _why_slow(self, seconds: float) -> str:
        """Silent altogether, or only slow? A person mends the two differently."""
        connection = self._connection(min(HEALTH_SECONDS, self.timeout))
        try:
            connection.request("GET", "/health")
            status = connection.getresponse().status
        except (OSError, HTTPException):
            return f"no reply within {seconds:g} s, and its /health is silent too: it hangs"
        finally:
            connection.close()
        if status != 200:
            return f"no reply within {seconds:g} s, and its /health says {status}"
        return (
            f"no reply within engine.timeout={seconds:g} s although it is alive: it is too slow. "
            "Raise engine.timeout, or lower engine.max_batch or rollout.max_completion_tokens"
        )

    def _check(self, status: int, content: bytes) -> None:
        if status == 200:
            return
        if status == 401:
            raise ModelError(
                f"the vLLM server {self.url} refuses the token: set {self.token_env} to the one "
                "that it was started with, or that it printed"
            )
        if status >= 500 or status in (408, 409, 429):
            raise Gone(f"it failed with status {status}: {said(content)}")
        raise ModelError(
            f"the vLLM server {self.url} refused a request ({status}): {said(content)}"
        )


def _send(
    connection: HTTPConnection,
    method: str,
    path: str,
    body: bytes | Iterable[bytes] | None,
    headers: dict[str, str],
) -> HTTPResponse:
    """The reply, also where it came before the whole body was sent: that then says why."""
    try:
        connection.request(method, path, body, headers)
    except (BrokenPipeError, ConnectionResetError) as error:
        try:
            return connection.getresponse()
        except (OSError, HTTPException):
            raise error from None
    return connection.getresponse()


def said(content: bytes) -> str:
    """A server's words, made fit to show."""
    text = content[:2000].decode("utf-8", "replace")
    try:
        found: Any = json.loads(text)["error"]
        text = str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return "".join(c for c in text[:400] if c.isprintable()).strip()
