"""The gateway over HTTP: an OpenAI-compatible endpoint in front of sessions.

GET /v1/models, POST /v1/chat/completions                      by the token of a session
GET /s/NAME/v1/models, POST /s/NAME/v1/chat/completions        the session is named besides
GET /health                                                    the only one without a token

The token is compared before a byte of the body is read; bodies have a size and a deadline. What
goes wrong becomes a status and OpenAI's form of an error.
"""

import asyncio
import hashlib
import json
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from secrets import token_urlsafe
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from groupwise.environments.gateway_reply import ChatReply, Part, ReplyWriter
from groupwise.environments.gateway_request import ChatRequest, RequestRefused, parse_request
from groupwise.environments.gateway_session import Session
from groupwise.remote.guard import HTTPRefusal, discard_body, read_body
from groupwise.remote.running import server_for
from groupwise.remote.server import JSON, computed_for

log = logging.getLogger("groupwise")

MAX_BODY_BYTES = 4 * 2**20
BACKLOG = 1024

Endpoint = Callable[[Request], Awaitable[Response]]


class SessionLookup(Protocol):
    def session(self, token: str, name: str | None) -> Session:
        """The one that a request is for. Raises RequestRefused: 401, or 404 for a wrong name."""
        ...


def gateway_app(
    sessions: SessionLookup, more: Sequence[tuple[str, str, Endpoint]] = (), **options: Any
) -> Starlette:
    """`more` are further endpoints; `options` are Starlette's."""

    async def models(request: Request) -> Response:
        model = _session(sessions, request).model
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "groupwise"}
        return json_response({"object": "list", "data": [entry]})

    async def completions(request: Request) -> Response:
        session = _session(sessions, request)
        body = await read_body(request, MAX_BODY_BYTES)
        asked = parse_request(body)
        writer = ReplyWriter(asked, session.tokenizer, session.eos_ids)
        if asked.stream:
            return await _streamed(session, asked, writer)
        reply = await computed_for(request, lambda: session.submit(asked))
        return json_response(writer.whole(reply))

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    endpoints = [
        ("GET", "/v1/models", models),
        ("GET", "/s/{name}/v1/models", models),
        ("POST", "/v1/chat/completions", completions),
        ("POST", "/s/{name}/v1/chat/completions", completions),
        *more,
    ]
    routes = [Route(path, answering(each), methods=[method]) for method, path, each in endpoints]
    return Starlette(routes=[*routes, Route("/health", health)], **options)


async def _streamed(session: Session, asked: ChatRequest, writer: ReplyWriter) -> Response:
    """Events as tokens are drawn. A request that is refused gets its status before any of them."""
    loop, parts = asyncio.get_running_loop(), asyncio.Queue[Part | None]()

    def tell(part: Part | None) -> None:
        loop.call_soon_threadsafe(parts.put_nowait, part)

    submitted = session.submit(asked, tell)
    submitted.add_done_callback(lambda _: tell(None))
    reply = asyncio.wrap_future(submitted)
    if await parts.get() is None:
        await reply
    return StreamingResponse(_events(writer, parts, reply), media_type="text/event-stream")


async def _events(
    writer: ReplyWriter, parts: "asyncio.Queue[Part | None]", reply: "asyncio.Future[ChatReply]"
) -> AsyncIterator[bytes]:
    """Whoever hangs up ends this generator, and with it the request."""
    try:
        while (part := await parts.get()) is not None:
            for event in writer.part(part):
                yield event
        for event in writer.end(await reply):
            yield event
    except HTTPRefusal as refusal:
        yield error_event(refusal)
    except asyncio.CancelledError:
        if not reply.cancelled():
            raise
        yield error_event(RequestRefused(410, "the session has ended"))
    finally:
        reply.cancel()


def _session(sessions: SessionLookup, request: Request) -> Session:
    return sessions.session(bearer_token(request), request.path_params.get("name"))


def bearer_token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def json_response(data: Any, status: int = 200) -> Response:
    return Response(json.dumps(data), status, media_type=JSON)


def answering(endpoint: Endpoint) -> Endpoint:
    """Turns what went wrong into a reply."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except HTTPRefusal as refusal:
            await discard_body(request)
            return _error(refusal)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _error(RequestRefused(410, "the session has ended"))
        except Exception as error:
            log.exception("a request failed")
            return _error(RequestRefused(500, f"{type(error).__name__} in the gateway"))

    return answer


def _error(refusal: HTTPRefusal) -> Response:
    return json_response(_described(refusal), refusal.status)


def error_event(refusal: HTTPRefusal) -> bytes:
    return b"data: " + json.dumps(_described(refusal)).encode() + b"\n\n"


def _described(refusal: HTTPRefusal) -> dict[str, Any]:
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    error = {
        "message": str(refusal),
        "type": kind,
        "param": getattr(refusal, "param", None),
        "code": getattr(refusal, "code", None),
    }
    return {"error": error}


class LocalGateway:
    """The gateway inside a run: on a free port of 127.0.0.1, in a thread. Each session has a token
    of its own, which chooses it; its name in the address must be the right one where it is given.
    """

    def __init__(self) -> None:
        self._sessions: dict[bytes, tuple[str, Session]] = {}
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        server = server_for(gateway_app(self))
        threading.Thread(
            target=server.run, kwargs={"sockets": [self._socket]}, name="gateway", daemon=True
        ).start()

    def open(self, session: Session) -> tuple[str, str]:
        """Its base URL and its API key."""
        token, name = token_urlsafe(24), token_urlsafe(9)
        self._sessions[_digest(token)] = name, session
        port = self._socket.getsockname()[1]
        return f"http://127.0.0.1:{port}/s/{name}/v1", token

    def close(self, token: str) -> None:
        """Requests in progress are cancelled, and the token is worth nothing any more."""
        _, session = self._sessions.pop(_digest(token))
        session.close()

    def session(self, token: str, name: str | None) -> Session:
        known = self._sessions.get(_digest(token))
        if known is None:
            raise RequestRefused(401, "the token is missing or wrong, or its session has ended")
        if name not in (None, known[0]):
            raise RequestRefused(404, "there is no such session for this token")
        return known[1]


def _digest(token: str) -> bytes:
    """Looking up a hash takes a time that does not tell how much of the token was right."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


@cache
def local_gateway() -> LocalGateway:
    """The gateway of all runs of this process; it ends with the process."""
    return LocalGateway()


# A process that is forked has no threads but its own: it starts a gateway where it needs one.
os.register_at_fork(after_in_child=local_gateway.cache_clear)
