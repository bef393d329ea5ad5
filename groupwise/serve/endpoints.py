"""What the endpoints of our servers have in common.

Every one but /health asks for the token, in constant time, before it reads anything; a body is read
up to its largest size; what goes wrong becomes a status and a sentence, and is counted.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from groupwise.serve.model_thread import ModelThread, QueueFull, Stopping

log = logging.getLogger("groupwise")

Answering = Callable[[Request], Awaitable[Response]]
Answered = TypeVar("Answered")
RETRY_SECONDS = 1
BODY = "application/octet-stream"


class Refused(Exception):
    """A request that gets a status and a sentence."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, {k.replace("_", "-"): v for k, v in headers.items()}


def guarded_app(
    name: str,
    thread: ModelThread[Any, Any],
    token: str,
    endpoints: Sequence[tuple[str, str, Answering]],
) -> Starlette:
    """("POST", "/logprobs", logprobs) ... with /metrics and /health; closes the thread too."""

    async def metrics(request: Request) -> Response:
        text = metrics_text(name, thread)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def health(request: Request) -> Response:
        if not thread.alive:
            return PlainTextResponse("stopping\n", 503)
        return PlainTextResponse("ok\n")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(thread.close)

    routes = [
        Route(path, _guarded(answer, thread, token), methods=[method])
        for method, path, answer in (*endpoints, ("GET", "/metrics", metrics))
    ]
    return Starlette(routes=[*routes, Route("/health", health)], lifespan=lifespan)


def _guarded(answer: Answering, thread: ModelThread[Any, Any], token: str) -> Answering:
    """Asks for the token first, turns what went wrong into a reply, and counts it."""

    async def endpoint(request: Request) -> Response:
        try:
            if not is_authorized(request.headers.get("authorization", ""), token):
                raise Refused(401, "the token is missing or wrong", www_authenticate="Bearer")
            response = await answer(request)
        except Refused as refusal:
            text = f"{refusal}\n"
            response = PlainTextResponse(text, refusal.status, headers=refusal.headers)
        except Exception as error:
            log.exception("a request failed")
            response = PlainTextResponse(f"{type(error).__name__} in the server\n", 500)
        thread.count_request(response.status_code)
        return response

    return endpoint


def is_authorized(header: str, token: str) -> bool:
    """In a time that does not tell how much of the token was right."""
    scheme, _, given = header.partition(" ")
    right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
    return right and scheme.lower() == "bearer"


def metrics_text(name: str, thread: ModelThread[Any, Any]) -> str:
    """Prometheus text; every name begins with groupwise_ and the server's own."""
    counts, prefix = thread.counts, f"groupwise_{name}"
    requests = [
        f'{prefix}_requests_total{{status="{status}"}} {count}'
        for status, count in sorted(counts.requests.items())
    ]
    shown = {
        "questions_total": ("counter", [f"{prefix}_questions_total {counts.questions}"]),
        "requests_total": ("counter", requests),
        "tokens_total": ("counter", [f"{prefix}_tokens_total {counts.tokens}"]),
        "passes_total": ("counter", [f"{prefix}_passes_total {counts.passes}"]),
        "seconds_total": ("counter", [f"{prefix}_seconds_total {counts.seconds:.6f}"]),
        "queue_length": ("gauge", [f"{prefix}_queue_length {thread.waiting}"]),
    }
    lines = []
    for what, (kind, values) in shown.items():
        lines += [f"# TYPE {prefix}_{what} {kind}", *values]
    return "\n".join(lines) + "\n"


async def read_body(request: Request, most: int) -> bytes:
    too_large = Refused(413, f"a body may have {most} bytes")
    if announced_length(request) > most:
        raise too_large
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise too_large
    except ClientDisconnect:
        raise Refused(400, "the body ended early") from None
    return bytes(body)


def announced_length(request: Request) -> int:
    """0 where no length is announced."""
    announced = request.headers.get("content-length", "0")
    if not (announced.isascii() and announced.isdigit() and len(announced) < 16):
        raise Refused(400, "content-length is no number")
    return int(announced)


def submit(thread: ModelThread[Any, Answered], question: Any) -> "Future[Answered]":
    """The thread's answer to come; a full queue and a shutdown become refusals."""
    try:
        return thread.submit(question)
    except QueueFull:
        message = f"{thread.places} questions wait already"
        raise Refused(503, message, retry_after=str(RETRY_SECONDS)) from None
    except Stopping:
        raise Refused(503, "the server is shutting down", connection="close") from None


async def unless_gone(request: Request, answer: "Future[Answered]") -> Answered:
    """The answer; nobody computes it when who asked has hung up while it waited."""
    wanted = asyncio.wrap_future(answer)
    # After the body, the one message that is left to receive is the end of the connection.
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({wanted, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            wanted.cancel()
            raise Refused(499, "who asked has hung up")
        try:
            return wanted.result()
        except MemoryError as error:
            raise Refused(507, f"out of memory: {error}") from error
    finally:
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
