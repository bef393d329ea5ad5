"""One server, over HTTP: every way in which a request fails, as one of three errors.

`ServerUnavailable`: this server cannot do it now, another may. MemoryError: the request was too
large for its device, smaller ones may fit. ModelError: only a person can fix it.

Each request has a connection of its own: next to a forward pass that costs nothing, closing it
tells the server that nobody waits any more, and no idle connection is used after it was closed.
"""

import json
import os
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeVar

import httpx2
from pydantic import BaseModel, ConfigDict, ValidationError

from groupwise.errors import ConfigError, ModelError
from groupwise.remote.payload import first_problem

MAX_TEXT_BYTES = 65536
MAX_RETRY_AFTER = 10.0
"""Seconds that a server may ask us to wait before we ask again."""
HEALTH_SECONDS = 5.0


class Described(BaseModel):
    """What a server says of itself as JSON: these fields, of these types, and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", ser_json_inf_nan="constants")


Description = TypeVar("Description", bound=Described)


class ServerUnavailable(Exception):
    """A server that does not answer, or not with what it should; the message says why."""


class ServerBusy(ServerUnavailable):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"its queue is full for {seconds:g} s")
        self.seconds = seconds


@dataclass(frozen=True)
class Reply:
    path: str
    status: int
    content: bytes
    retry_after: str = ""

    @property
    def text(self) -> str:
        """What the server says, fit to be shown."""
        text = self.content[:2000].decode("utf-8", "replace")
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            error = json.loads(text)["error"]
            text = str(error["message"] if isinstance(error, dict) else error)
        return "".join(c for c in text[:400] if c.isprintable()).strip()


@dataclass(frozen=True)
class ServerClient:
    """ServerClient("http://127.0.0.1:8650", token="...", token_env="GROUPWISE_TOKEN", timeout=60)

    `timeout` is in seconds without a byte. `kind` is what messages call the server, `command` what
    starts one, and `slow_fix` what to change when it is alive and too slow.
    """

    url: str
    token: str
    token_env: str
    timeout: float

    kind: ClassVar[str] = "server"
    command: ClassVar[str] = "groupwise serve"
    slow_fix: ClassVar[str] = "the timeout"

    def request(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        max_bytes: int = MAX_TEXT_BYTES,
        *,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
    ) -> bytes:
        """The content of a reply of status 200; one try. A streamed body needs Content-Length."""
        seconds = timeout or self.timeout
        sent = {"Authorization": f"Bearer {self.token}", "Accept-Encoding": "identity"}
        try:
            reply = self._exchange(method, path, body, max_bytes, sent | (headers or {}), seconds)
        except httpx2.TimeoutException as error:
            raise ServerUnavailable(self._why_slow(seconds)) from error
        except httpx2.HTTPError as error:
            reason = str(error).partition("] ")[2] or str(error) or type(error).__name__
            raise ServerUnavailable(reason) from error
        if reply.status != 200:
            raise self.failure(reply)
        return reply.content

    def request_when_free(self, method: str, path: str, body: bytes, max_bytes: int) -> bytes:
        """`request`, and again while the server's queue is full."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return self.request(method, path, body, max_bytes)
            except ServerBusy as busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    reason = f"its queue was full for {self.timeout:g} s"
                    raise ServerUnavailable(reason) from None
                time.sleep(min(busy.seconds, left))

    def failure(self, reply: Reply) -> Exception:
        """The error that a reply of another status than 200 stands for."""
        if reply.status == 401:
            return ModelError(
                f"the {self.kind} {self.url} refuses the token: set {self.token_env} to the "
                "one that it was started with, or that it printed"
            )
        if reply.status == 503:
            wait = reply.retry_after
            seconds = float(wait) if wait.isascii() and wait.isdigit() else 1.0
            return ServerBusy(min(max(seconds, 0.1), MAX_RETRY_AFTER))
        if reply.status == 507:
            return MemoryError(f"{self.url}: {reply.text}")
        if reply.status in (409, 410):
            return ServerUnavailable(reply.text)
        if reply.status >= 500 or reply.status in (408, 429):
            return ServerUnavailable(f"it failed with status {reply.status}: {reply.text}")
        return ModelError(
            f"the {self.kind} {self.url} refused a request ({reply.status}): {reply.text}"
        )

    def describe(self, content: bytes, kind: type[Description]) -> Description:
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            raise ModelError(
                f"{self.url} answers, but not as a {self.kind} of this version does "
                f"({first_problem(error)}); start it with `{self.command} MODEL`"
            ) from error

    @cached_property
    def _http(self) -> httpx2.Client:
        encrypted = self.url.startswith("https:")
        return httpx2.Client(
            base_url=self.url,
            verify=ssl.create_default_context() if encrypted else False,
            trust_env=False,  # no proxies: these are addresses of our own
            limits=httpx2.Limits(max_keepalive_connections=0, max_connections=None),
        )

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes],
        max_bytes: int,
        headers: dict[str, str],
        seconds: float,
    ) -> Reply:
        sending = self._http.stream(method, path, content=body, headers=headers, timeout=seconds)
        with sending as response:
            content, deadline = bytearray(), time.monotonic() + seconds
            for chunk in response.iter_raw():
                content += chunk
                if len(content) > max_bytes:
                    raise ServerUnavailable("its reply is too long")
                if time.monotonic() > deadline:
                    raise ServerUnavailable(f"its reply took longer than {seconds:g} s")
            retry_after = response.headers.get("retry-after", "")
            return Reply(path, response.status_code, bytes(content), retry_after)

    def _why_slow(self, seconds: float) -> str:
        """Silent altogether, or only slow? The two have different fixes."""
        begin = f"no reply within {seconds:g} s"
        limit = min(HEALTH_SECONDS, seconds)
        try:
            reply = self._exchange("GET", "/health", b"", MAX_TEXT_BYTES, {}, limit)
        except (httpx2.HTTPError, ServerUnavailable):
            return f"{begin}, and its /health is silent too: it hangs"
        if reply.status != 200:
            return f"{begin}, and its /health says {reply.status}: {reply.text}"
        return f"{begin} although it is alive: it is too slow. Raise {self.slow_fix}"


def token_from_environment(variable: str, setting: str, command: str) -> str:
    token = os.environ.get(variable, "")
    if not (token.isascii() and token.isprintable() and token.strip()):
        raise ConfigError(
            f"{setting} needs the servers' token in the environment: "
            f"export {variable}=..., as `{command}` printed it"
        )
    return token.strip()
