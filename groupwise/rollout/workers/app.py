"""The endpoints of a worker that samples.

POST /begin     a run's settings in, who the worker's model is out; JSON
PUT /weights    ?run=...&version=7 with a safetensors file as the body; its CRC-32 out, JSON
POST /generate  requests in, answers out (order.py)
GET /model      whose weights it has, JSON
GET /metrics    Prometheus text
GET /health     200 while the model's thread is well; the only one that asks for no token
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from groupwise.errors import GroupwiseError
from groupwise.rollout.workers.holder import Holder, OtherWeights, Start
from groupwise.rollout.workers.marks import to_json
from groupwise.rollout.workers.order import LARGEST_ORDER, decode_order, encode_answers
from groupwise.rollout.workers.pipe import Pipe
from groupwise.rollout.workers.weights import PIECE
from groupwise.serve.endpoints import BODY, Refused, guarded_app, read_body, submit, unless_gone
from groupwise.serve.model_thread import Job, ModelThread
from groupwise.serve.wire import BadBody, TooLarge

Work = Callable[[], Any]
LARGEST_START = 65536


def model_thread(places: int) -> ModelThread[Work, Any]:
    """A thread that does what it is given, one thing after the other."""
    return ModelThread("policy", places, _do)


def build_app(holder: Holder, thread: ModelThread[Work, Any], token: str) -> Starlette:
    """build_app(holder, model_thread(64), "s3cret"); closes the thread when it stops."""
    own = _Endpoints(holder, thread)
    endpoints = [
        ("POST", "/begin", own.begin),
        ("PUT", "/weights", own.weights),
        ("POST", "/generate", own.generate),
        ("GET", "/model", own.model),
    ]
    return guarded_app("rollouts", thread, token, endpoints)


class _Endpoints:
    def __init__(self, holder: Holder, thread: ModelThread[Work, Any]) -> None:
        self.holder, self.thread = holder, thread

    async def begin(self, request: Request) -> Response:
        body = await read_body(request, LARGEST_START)
        try:
            start = Start.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            message = f"{where}: {first['msg']}; is it of the trainer's version of groupwise?"
            raise Refused(400, message) from None
        marks = await _answered(request, submit(self.thread, lambda: self.holder.begin(start)))
        return JSONResponse(to_json(marks))

    async def weights(self, request: Request) -> Response:
        run, version = request.query_params.get("run", ""), request.query_params.get("version", "")
        if not (version.isascii() and version.isdigit() and len(version) < 16):
            raise Refused(400, "weights need ?run=... and &version=..., which is a number")
        pipe = Pipe()

        def receive() -> str:
            try:
                return self.holder.receive(run, int(version), pipe)
            finally:
                pipe.leave()

        answer, torn = submit(self.thread, receive), True
        try:
            gathered = bytearray()
            async for piece in request.stream():
                if answer.done():  # it was refused: the rest need not come
                    break
                gathered += piece
                if len(gathered) >= PIECE:  # few handovers: each one stops the other thread
                    await _put(pipe, gathered)
                    gathered = bytearray()
            await _put(pipe, gathered)
            torn = False
        except ClientDisconnect:
            raise Refused(400, "the body ended early") from None
        finally:
            pipe.end(torn=torn)
        checksum = await _answered(request, answer)
        return JSONResponse({"version": int(version), "crc32": checksum})

    async def generate(self, request: Request) -> Response:
        body = await read_body(request, LARGEST_ORDER)
        try:
            order = await asyncio.to_thread(decode_order, body, self.holder.bounds)
        except BadBody as error:
            raise Refused(413 if isinstance(error, TooLarge) else 400, str(error)) from error

        def work() -> bytes:
            began = time.perf_counter()
            answers = self.holder.generate(order)
            tokens = sum(len(c.tokens) for group in answers for c in group)
            self.thread.count_work(order.answers, tokens, time.perf_counter() - began)
            return encode_answers(answers, order)

        content = await _answered(request, submit(self.thread, work))
        return Response(content, media_type=BODY)

    async def model(self, request: Request) -> Response:
        run = None if self.holder.start is None else self.holder.start.run
        vocab, version = self.holder.bounds.vocab, self.holder.version
        return JSONResponse({"vocab": vocab, "run": run, "version": version})


def _do(jobs: list[Job[Work, Any]]) -> None:
    for job in jobs:
        try:
            job.answer.set_result(job.question())
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            job.answer.set_exception(MemoryError(str(error).splitlines()[0]))
        except BaseException as error:
            job.answer.set_exception(error)


async def _put(pipe: Pipe, piece: bytearray) -> None:
    if piece and not pipe.offer(piece):
        await asyncio.to_thread(pipe.put, piece)


async def _answered(request: Request, answer: "Future[Any]") -> Any:
    try:
        return answer.result() if answer.done() else await unless_gone(request, answer)
    except OtherWeights as error:
        raise Refused(409, str(error)) from error
    except BadBody as error:
        raise Refused(400, str(error)) from error
    except GroupwiseError as error:
        raise Refused(422, str(error)) from error
