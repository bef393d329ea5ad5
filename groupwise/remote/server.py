"""A Starlette app with a model behind it: guarded endpoints, /metrics and /health."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from groupwise.errors import GroupwiseError
from groupwise.remote.guard import RETRY_AFTER_SECONDS, HTTPRefusal, TokenGuard, discard_body
from groupwise.remote.model_loop import ModelLoop, QueueFull, Stopping
from groupwise.remote.payload import BadPayload, PayloadTooLarge

log = logging.getLogger("groupwise")

Endpoint = Callable[[Request], Awaitable[Response]]
Result = TypeVar("Result")
BINARY, JSON = "application/octet-stream", "application/json"
SPARE_REQUESTS = 32
"""In progress beside those that wait for the model: for metrics, and bodies on their way."""


def build_app(
    name: str,
    thread: ModelLoop,
    token: str,
    endpoints: Sequence[tuple[str, str, Endpoint]],
    problem: Callable[[], str | None] = lambda: None,
) -> Starlette:
    """("POST", "/logprobs", logprobs) ... with /metrics and /health; closes the thread too.

    `problem`: why the server cannot do its work at the moment, for /health to tell.
    """

    async def metrics(request: Request) -> Response:
        text = metrics_text(name, thread)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def health(request: Request) -> Response:
        reason = problem() if thread.alive else "stopping"
        return PlainTextResponse(f"{reason or 'ok'}\n", 503 if reason else 200)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(thread.close)

    routes = [
        Route(path, _answering(endpoint, thread), methods=[method])
        for method, path, endpoint in (*endpoints, ("GET", "/metrics", metrics))
    ]
    most = thread.queue_size + SPARE_REQUESTS
    guard = Middleware(TokenGuard, token=token, max_requests=most, count=thread.count_request)
    routes.append(Route("/health", health))
    return Starlette(routes=routes, middleware=[guard], lifespan=lifespan)


def _answering(endpoint: Endpoint, thread: ModelLoop) -> Endpoint:
    """Turns what went wrong into a reply, and counts it."""

    async def answer(request: Request) -> Response:
        try:
            response = await endpoint(request)
        except HTTPRefusal as refusal:
            await discard_body(request)
            response = refusal.response()
        except Exception as error:
            log.exception("a request failed")
            response = PlainTextResponse(f"{type(error).__name__} in the server\n", 500)
        thread.count_request(response.status_code)
        return response

    return answer


def metrics_text(name: str, thread: ModelLoop) -> str:
    """Prometheus text; every name begins with groupwise_ and the server's own."""
    counts, prefix = thread.counts, f"groupwise_{name}"
    lines = [f"# TYPE {prefix}_requests_total counter"]
    for status, count in sorted(counts.requests.items()):
        lines.append(f'{prefix}_requests_total{{status="{status}"}} {count}')
    for what in ("questions", "tokens", "passes", "seconds"):
        lines.append(f"# TYPE {prefix}_{what}_total counter")
        lines.append(f"{prefix}_{what}_total {getattr(counts, what):.15g}")
    lines += [f"# TYPE {prefix}_queue_length gauge", f"{prefix}_queue_length {thread.waiting}"]
    return "\n".join(lines) + "\n"


@contextmanager
def refusing() -> Iterator[None]:
    """Errors of whoever asked, a full queue and a full device, as refusals."""
    try:
        yield
    except QueueFull:
        wait = str(RETRY_AFTER_SECONDS)
        raise HTTPRefusal(503, "the queue is full", retry_after=wait) from None
    except Stopping:
        raise HTTPRefusal(503, "the server is shutting down") from None
    except MemoryError as error:
        raise HTTPRefusal(507, f"out of memory: {error}") from error
    except BadPayload as error:
        status = 413 if isinstance(error, PayloadTooLarge) else 400
        raise HTTPRefusal(status, str(error)) from error
    except GroupwiseError as error:
        raise HTTPRefusal(422, str(error)) from error


async def decoded(decode: Callable[[], Result]) -> Result:
    """What a body holds, decoded beside the event loop."""
    with refusing():
        return await asyncio.to_thread(decode)


async def computed(submit: "Callable[[], Future[Result]]") -> Result:
    """What the model's thread makes of what is submitted to it."""
    with refusing():
        return await asyncio.wrap_future(submit())


async def computed_for(request: Request, submit: "Callable[[], Future[Result]]") -> Result:
    """`computed`, or nothing when the client hangs up meanwhile. Its body has been read."""
    result = asyncio.ensure_future(computed(submit))
    # After the body, the one message that is left to receive is the end of the connection.
    hung_up = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({result, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            result.cancel()
            raise HTTPRefusal(499, "the client has closed the connection")
        return result.result()
    finally:
        hung_up.cancel()
        with suppress(asyncio.CancelledError):
            await hung_up
