"""What every server of ours does with a request before anything else, vLLM's included.

The token is compared first, in constant time; only then is a byte of the body read, up to its
largest size and within deadlines. What goes wrong becomes a status and a sentence.

Imports nothing but Starlette: vLLM's processes have none of our other dependencies.
"""

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_ENV = "GROUPWISE_TOKEN"
STALL_SECONDS = 30.0
"""Longest silence in the middle of a body."""
MIN_BYTES_PER_SECOND = 2**18
"""Slower bodies are given up, so that a trickle does not hold a place for ever."""
DISCARD_BYTES, DISCARD_SECONDS = 2**20, 1.0
"""Of a refused body that we still read: closing at once could destroy the refusal on its way."""
RETRY_AFTER_SECONDS = 1


class HTTPRefusal(Exception):
    """HTTPRefusal(503, "why", retry_after="1"): a status, a sentence, and perhaps headers."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> Response:
        return PlainTextResponse(f"{self}\n", self.status, headers=self.headers)


class TokenGuard:
    """TokenGuard(app, token, max_requests) lets requests with the token through, and /health.

    Connections that have not shown a token take no place among the `max_requests` (None: any
    number) that may be in progress at once. `count` is told the status of every refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        max_requests: int | None = None,
        count: Callable[[int], None] = lambda status: None,
    ) -> None:
        self.app, self.token = app, token
        self.max_requests, self.count = max_requests, count
        self.in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] == "/health"):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":  # a websocket is closed: nothing of ours uses one
            await self._guarded(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"authorization", b"")
        refusal = None
        if not is_authorized(given, self.token):
            refusal = HTTPRefusal(401, "the token is missing or wrong", www_authenticate="Bearer")
        elif self.max_requests is not None and self.in_progress >= self.max_requests:
            text = f"{self.in_progress} requests are in progress already"
            refusal = HTTPRefusal(503, text, retry_after=str(RETRY_AFTER_SECONDS))
        if refusal is not None:
            self.count(refusal.status)
            await refusal.response()(scope, receive, send)
            return
        self.in_progress += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.in_progress -= 1


def is_authorized(header: bytes, token: str) -> bool:
    """In a time that does not tell how much of the token was right."""
    scheme, _, given = header.partition(b" ")
    right = hmac.compare_digest(given.strip(), token.encode())
    return right and scheme.lower() == b"bearer"


def is_strong_token(token: str) -> bool:
    """It travels in a header, and guessing it must be hopeless."""
    return re.fullmatch(r"[\x21-\x7e]{16,512}", token) is not None


def content_length(request: Request) -> int | None:
    announced = request.headers.get("content-length")
    if announced is None:
        return None
    if not (announced.isascii() and announced.isdigit() and len(announced) < 16):
        raise HTTPRefusal(400, "content-length is not a number")
    return int(announced)


async def body_chunks(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """A body as it arrives; refuses one that is too long, too slow, or ends early."""
    too_large = HTTPRefusal(413, f"a body may have {max_bytes} bytes")
    length = content_length(request)
    if length is not None and length > max_bytes:
        raise too_large
    loop, received = asyncio.get_running_loop(), 0
    expected = max_bytes if length is None else length
    deadline = loop.time() + STALL_SECONDS + expected / MIN_BYTES_PER_SECOND
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout_at(min(loop.time() + STALL_SECONDS, deadline)):
                chunk = await anext(stream)
        except StopAsyncIteration:
            request.state.body_is_read = True
            return
        except TimeoutError:
            raise HTTPRefusal(408, f"the body stalled after {received} bytes") from None
        except ClientDisconnect:
            raise HTTPRefusal(400, "the body ended early") from None
        received += len(chunk)
        if received > max_bytes:
            raise too_large
        yield chunk


async def read_body(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in body_chunks(request, max_bytes):
        body += chunk
    return bytes(body)


async def discard_body(request: Request) -> None:
    """Read what little may still be on its way from who is being refused."""
    if getattr(request.state, "body_is_read", False):
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            left = DISCARD_BYTES
            while left > 0:
                message = await request.receive()
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))
