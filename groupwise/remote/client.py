"""One server, over HTTP: every way in which a request fails, as one of three errors.

`ServerUnavailable`: this server cannot do it now, another may. MemoryError: the request was too
large for its device, smaller ones may fit. ModelError: only a person can fix it.

Each request has a connection of its own: next to a forward pass that costs nothing, closing it
tells the server that nobody waits any more, and no idle connection is used after it was closed.
All of them run in `client_loop`.
"""

import asyncio
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable
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

Take = Callable[[bytes], bool]
"""Given a chunk of a reply: whether it completed something."""


class Described(BaseModel):
    """What a server says of itself as JSON: these fields, of these types, and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", ser_json_inf_nan="constants")


Description = TypeVar("Description", bound=Described)


class ServerUnavailable(Exception):
    """A server that does not answer, or not with what it should; the message says why."""


class BaseRefused(Exception):
    """A server does not take a difference of weights: it does not have what that is from."""


class ServerBusy(ServerUnavailable):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"its queue is full for {seconds:g} s")
        self.seconds = seconds


@dataclass(frozen=True)
class HttpReply:
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

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        max_bytes: int = MAX_TEXT_BYTES,
        *,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
        take: Take | None = None,
    ) -> bytes:
        """The content of a reply of status 200; one try. A streamed body needs Content-Length.

        `take` gets each chunk as it comes, and says whether it completed something: then there are
        `timeout` seconds for the next.
        """
        seconds = timeout or self.timeout
        sent = {"Authorization": f"Bearer {self.token}", "Accept-Encoding": "identity"}
        sent |= headers or {}
        try:
            reply = await self._exchange(method, path, body, max_bytes, sent, seconds, take)
        except httpx2.TimeoutException as error:
            raise ServerUnavailable(await self._why_slow(seconds)) from error
        except httpx2.HTTPError as error:
            raise ServerUnavailable(_reason(error)) from error
        if reply.status != 200:
            raise self.failure(reply)
        return reply.content

    async def post(self, path: str, body: bytes, max_bytes: int, take: Take | None = None) -> bytes:
        """A request of POST, and again while the server's queue is full."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return await self.request("POST", path, body, max_bytes, take=take)
            except ServerBusy as busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    reason = f"its queue was full for {self.timeout:g} s"
                    raise ServerUnavailable(reason) from None
                await asyncio.sleep(min(busy.seconds, left))

    def failure(self, reply: HttpReply) -> Exception:
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
        if reply.status == 412:
            return BaseRefused(reply.text)
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
    def _http(self) -> httpx2.AsyncClient:
        encrypted = self.url.startswith("https:")
        return httpx2.AsyncClient(
            base_url=self.url,
            verify=ssl.create_default_context() if encrypted else False,
            trust_env=False,  # no proxies: these are addresses of our own
            limits=httpx2.Limits(max_keepalive_connections=0, max_connections=None),
        )

    async def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes],
        max_bytes: int,
        headers: dict[str, str],
        seconds: float,
        take: Take | None = None,
    ) -> HttpReply:
        content = body if isinstance(body, bytes) else _made_beside(body)
        sending = self._http.stream(method, path, content=content, headers=headers, timeout=seconds)
        async with sending as response:
            received, kept, deadline = 0, bytearray(), time.monotonic() + seconds
            taken = take if response.status_code == 200 else None
            async for chunk in response.aiter_raw():
                received += len(chunk)
                if received > max_bytes:
                    raise ServerUnavailable("its reply is too long")
                if taken is None:
                    kept += chunk
                elif taken(chunk):
                    deadline = time.monotonic() + seconds
                if time.monotonic() > deadline:
                    raise ServerUnavailable(f"its reply took longer than {seconds:g} s")
            retry_after = response.headers.get("retry-after", "")
            return HttpReply(path, response.status_code, bytes(kept), retry_after)

    async def _why_slow(self, seconds: float) -> str:
        """Silent altogether, or only slow? The two have different fixes."""
        begin = f"no reply within {seconds:g} s"
        limit = min(HEALTH_SECONDS, seconds)
        try:
            reply = await self._exchange("GET", "/health", b"", MAX_TEXT_BYTES, {}, limit)
        except (httpx2.HTTPError, ServerUnavailable):
            return f"{begin}, and its /health is silent too: it hangs"
        if reply.status != 200:
            return f"{begin}, and its /health says {reply.status}: {reply.text}"
        return f"{begin} although it is alive: it is too slow. Raise {self.slow_fix}"


async def _made_beside(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Chunks that take a while to be made, which holds up no other request."""
    source = iter(chunks)
    while (chunk := await asyncio.to_thread(next, source, None)) is not None:
        yield chunk


def _reason(error: BaseException) -> str:
    """What the system says, where it says something: connection refused, no such host ..."""
    told, inner = str(error) or type(error).__name__, error
    while inner is not None:
        if isinstance(inner, OSError) and inner.errno and inner.errno > 0:
            return os.strerror(inner.errno)
        inner = inner.__cause__ or inner.__context__
    return told


def token_from_environment(variable: str, setting: str, command: str) -> str:
    token = os.environ.get(variable, "")
    if not (token.isascii() and token.isprintable() and token.strip()):
        raise ConfigError(
            f"{setting} needs the servers' token in the environment: "
            f"export {variable}=..., as `{command}` printed it"
        )
    return token.strip()
