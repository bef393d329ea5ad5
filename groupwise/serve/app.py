"""The endpoints of a reference server.

POST /logps    a question in, log-probs out (wire.py)
GET /model     who the model is and what the server takes, as JSON
GET /metrics   Prometheus text
GET /health    200 while the model's thread is well; the only one that asks for no token

A body is read only after the token is checked, and only up to the largest that can be a question.
"""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from groupwise.policy.scoring import Scored
from groupwise.serve.identity import Identity, to_json
from groupwise.serve.wire import (
    BadBody,
    Limits,
    TooLarge,
    decode_question,
    encode_answer,
)
from groupwise.serve.worker import QueueFull, Stopping, Worker

log = logging.getLogger("groupwise")

Answering = Callable[[Request], Awaitable[Response]]
RETRY_SECONDS = 1
BODY = "application/octet-stream"


class Refused(Exception):
    """A request that gets a status and a sentence."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, {k.replace("_", "-"): v for k, v in headers.items()}


def build_app(worker: Worker, limits: Limits, identity: Identity, token: str) -> Starlette:
    """build_app(worker, limits, identify(policy), "s3cret"); closes the worker when it stops."""

    async def logps(request: Request) -> Response:
        body = await _read(request, limits.body)
        try:
            question = await asyncio.to_thread(decode_question, body, limits)
        except BadBody as error:
            raise Refused(413 if isinstance(error, TooLarge) else 400, str(error)) from error
        try:
            answer = worker.submit(question)
        except QueueFull:
            message = f"{worker.places} questions wait already"
            raise Refused(503, message, retry_after=str(RETRY_SECONDS)) from None
        except Stopping:
            raise Refused(503, "the server is shutting down", connection="close") from None
        scored = await _unless_gone(request, answer)
        content = await asyncio.to_thread(encode_answer, question, scored, identity.name)
        return Response(content, media_type=BODY)

    async def model(request: Request) -> Response:
        return JSONResponse({**to_json(identity), "tokens": limits.tokens, "name": identity.name})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(metrics_text(worker), media_type="text/plain; version=0.0.4")

    async def health(request: Request) -> Response:
        if not worker.alive:
            return PlainTextResponse("stopping\n", 503)
        return PlainTextResponse("ok\n")

    def guarded(answer: Answering) -> Answering:
        return _guarded(answer, worker, token)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(worker.close)

    return Starlette(
        routes=[
            Route("/logps", guarded(logps), methods=["POST"]),
            Route("/model", guarded(model)),
            Route("/metrics", guarded(metrics)),
            Route("/health", health),
        ],
        lifespan=lifespan,
    )


def _guarded(answer: Answering, worker: Worker, token: str) -> Answering:
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
        worker.count_request(response.status_code)
        return response

    return endpoint


def is_authorized(header: str, token: str) -> bool:
    """In a time that does not tell how much of the token was right."""
    scheme, _, given = header.partition(" ")
    right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
    return right and scheme.lower() == "bearer"


def metrics_text(worker: Worker) -> str:
    counts = worker.counts
    requests = [
        f'groupwise_reference_requests_total{{status="{status}"}} {count}'
        for status, count in sorted(counts.requests.items())
    ]
    shown = {
        "questions_total": ("counter", [f"groupwise_reference_questions_total {counts.questions}"]),
        "requests_total": ("counter", requests),
        "tokens_total": ("counter", [f"groupwise_reference_tokens_total {counts.tokens}"]),
        "passes_total": ("counter", [f"groupwise_reference_passes_total {counts.passes}"]),
        "seconds_total": ("counter", [f"groupwise_reference_seconds_total {counts.seconds:.6f}"]),
        "queue_length": ("gauge", [f"groupwise_reference_queue_length {worker.waiting}"]),
    }
    lines = []
    for name, (kind, values) in shown.items():
        lines += [f"# TYPE groupwise_reference_{name} {kind}", *values]
    return "\n".join(lines) + "\n"


async def _read(request: Request, most: int) -> bytes:
    too_large = Refused(413, f"a body may have {most} bytes")
    announced = request.headers.get("content-length", "0")
    if not (announced.isascii() and announced.isdigit() and len(announced) < 16):
        raise Refused(400, "content-length is no number")
    if int(announced) > most:
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


async def _unless_gone(request: Request, answer: "Future[Scored]") -> Scored:
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
