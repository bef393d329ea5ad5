"""The endpoints of a reference server.

POST /logprobs    a question in, log-probs out (wire.py)
GET /model     who the model is and what the server takes, as JSON
GET /metrics   Prometheus text
GET /health    200 while the model's thread is well; the only one that asks for no token
"""

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from groupwise.serve.endpoints import BODY, Refused, guarded_app, read_body, submit, unless_gone
from groupwise.serve.identity import Identity, to_json
from groupwise.serve.wire import BadBody, Limits, TooLarge, decode_question, encode_answer
from groupwise.serve.worker import Worker


def build_app(worker: Worker, limits: Limits, identity: Identity, token: str) -> Starlette:
    """build_app(worker, limits, identify(policy), "s3cret"); closes the worker when it stops."""

    async def logprobs(request: Request) -> Response:
        body = await read_body(request, limits.body)
        try:
            question = await asyncio.to_thread(decode_question, body, limits)
        except BadBody as error:
            raise Refused(413 if isinstance(error, TooLarge) else 400, str(error)) from error
        scored = await unless_gone(request, submit(worker.thread, question))
        content = await asyncio.to_thread(encode_answer, question, scored, identity.name)
        return Response(content, media_type=BODY)

    async def model(request: Request) -> Response:
        return JSONResponse({**to_json(identity), "tokens": limits.tokens, "name": identity.name})

    endpoints = [("POST", "/logprobs", logprobs), ("GET", "/model", model)]
    return guarded_app("reference", worker.thread, token, endpoints)
