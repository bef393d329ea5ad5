"""`groupwise serve rollouts`: a worker that samples answers for a run.

POST /begin     a run's settings in, the fingerprint of the worker's model out; JSON
PUT /weights    ?run=...&version=7 with a safetensors file as the body, or with &base=6 what is
                different from version 6 (sparse_weights.py); the checksum out, JSON
POST /generate  prompts in, answers out as they end (worker_payload.py)
GET /model      whose weights it has, JSON
GET /metrics    Prometheus text
GET /health     200 while it can sample or take weights; the only one that asks for no token

A run begins with /begin; whoever began last has the worker, and every request names its run and
version, so that nobody gets answers by weights that he did not mean. Requests are taken at any
time into the worker's one engine (worker_model.py).
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Future
from functools import partial

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from groupwise.config import AdapterSettings
from groupwise.policy.load import Policy, load_policy, pick_device, pick_dtype
from groupwise.remote.guard import HTTPRefusal, body_chunks, read_body
from groupwise.remote.model_loop import ModelLoop
from groupwise.remote.payload import CHUNK_BYTES, first_problem, frame
from groupwise.remote.running import Announce, Listening, run_app
from groupwise.remote.server import (
    BINARY,
    JSON,
    build_app,
    computed,
    computed_for,
    decoded,
    refusing,
)
from groupwise.remote.worker_model import MakeEngine, Upload, WorkerModel
from groupwise.remote.worker_payload import (
    MAX_BODY_BYTES,
    RunSettings,
    decode_request,
    encode_response,
)
from groupwise.types import Completion

log = logging.getLogger("groupwise")

MAX_SETTINGS_BYTES = 65536


class _Endpoints:
    def __init__(self, worker: WorkerModel, thread: ModelLoop) -> None:
        self.worker, self.thread = worker, thread

    async def begin(self, request: Request) -> Response:
        body = await read_body(request, MAX_SETTINGS_BYTES)
        try:
            settings = RunSettings.model_validate_json(body)
        except ValidationError as error:
            message = f"{first_problem(error)}; is it of the trainer's version of groupwise?"
            raise HTTPRefusal(400, message) from None
        if settings.adapter is not None and settings.adapter.rank > self.worker.max_rank:
            text = f"adapter.rank={settings.adapter.rank} is more than the model's width"
            raise HTTPRefusal(400, f"{text}, {self.worker.max_rank}")
        self.worker.interrupt_upload()
        work = partial(self.worker.begin, settings)
        fingerprint = await computed_for(request, lambda: self.thread.submit(work))
        return Response(fingerprint.model_dump_json(), media_type=JSON)

    async def weights(self, request: Request) -> Response:
        run, version, base = (request.query_params.get(n, "") for n in ("run", "version", "base"))
        for number in (version, base or "0"):
            if not (number.isascii() and number.isdigit() and len(number) < 16):
                raise HTTPRefusal(400, "weights need ?run=... and &version=..., which is a number")
        self.worker.expect(run)
        if base:
            body = await read_body(request, self.worker.max_weights_bytes)
            self.worker.interrupt_upload()
            work = partial(self.worker.change, run, int(version), int(base), body)
            checksum = await computed(lambda: self.thread.submit(work))
        else:
            upload = self.worker.begin_upload()
            work = partial(self.worker.load, run, int(version), upload)
            loaded = asyncio.ensure_future(computed(lambda: self.thread.submit(work)))
            checksum = await self._received(request, upload, loaded)
        return JSONResponse({"version": int(version), "checksum": checksum})

    async def _received(
        self, request: Request, upload: Upload, loaded: "asyncio.Future[str]"
    ) -> str:
        """The next chunk arrives while the one before it is copied."""
        try:
            gathered = bytearray()
            async for chunk in body_chunks(request, self.worker.max_weights_bytes):
                gathered += chunk
                if len(gathered) >= CHUNK_BYTES and not loaded.done():
                    await asyncio.to_thread(upload.put, gathered)
                    gathered = bytearray()
                if loaded.done():
                    return await loaded  # it cannot be loaded: the rest need not come
            await asyncio.to_thread(upload.put, gathered)
            upload.finish()
            return await loaded
        except BaseException as error:
            known = isinstance(error, HTTPRefusal)
            upload.fail(error if known else HTTPRefusal(400, "the body ended early"))
            loaded.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    async def generate(self, request: Request) -> Response:
        body = await read_body(request, MAX_BODY_BYTES)
        asked = await decoded(lambda: decode_request(body, self.worker.limits))
        frames: asyncio.Queue[bytes] = asyncio.Queue()
        put = partial(asyncio.get_running_loop().call_soon_threadsafe, frames.put_nowait)

        def done(number: int, answers: tuple[Completion, ...], seconds: float) -> None:
            tokens = sum(len(answer.tokens) for answer in answers)
            self.thread.count_work(len(answers), tokens, seconds)
            put(frame(200, number, encode_response(answers, asked.run)))

        with refusing():
            sampled = self.thread.submit(lambda: self.worker.sample(asked, done))
        return StreamingResponse(_until_done(frames, sampled), media_type=BINARY)

    async def model(self, request: Request) -> Response:
        run = None if self.worker.settings is None else self.worker.settings.run
        state = {"vocab": self.worker.limits.vocab, "run": run, "version": self.worker.version}
        return JSONResponse(state)


async def _until_done(frames: "asyncio.Queue[bytes]", work: "Future[None]") -> AsyncIterator[bytes]:
    """The frames, and one that says why there are no more; the work ends with its reader."""
    done = asyncio.wrap_future(work)
    done.add_done_callback(lambda _: frames.put_nowait(b""))
    try:
        while content := await frames.get():
            yield content
        try:
            with refusing():
                done.result()
        except HTTPRefusal as refusal:
            yield frame(refusal.status, 0, str(refusal).encode())
        except asyncio.CancelledError:
            yield frame(409, 0, b"another run has begun with it since, or its weights were lost")
        except Exception as error:
            log.exception("a request failed")
            yield frame(500, 0, f"{type(error).__name__} in the server".encode())
    finally:
        done.cancel()


def worker_app(worker: WorkerModel, queue_size: int, token: str) -> Starlette:
    """`queue_size`: requests that may wait for the model."""
    own = _Endpoints(worker, ModelLoop("policy", queue_size))
    endpoints = [("POST", "/begin", own.begin), ("PUT", "/weights", own.weights)]
    endpoints += [("POST", "/generate", own.generate), ("GET", "/model", own.model)]
    return build_app("rollouts", own.thread, token, endpoints, worker.problem)


def serve_rollouts(
    model: str,
    device: str,
    precision: str,
    quantization: str | None,
    make_engine: MakeEngine,
    listening: Listening,
    announce: Announce,
) -> None:
    """Load a model and sample until stopped."""
    place = pick_device(device)

    def load(adapter: AdapterSettings | None) -> Policy:
        dtype = pick_dtype(precision, place)
        return load_policy(
            model, place, dtype, layout="padded", adapter=adapter, quantization=quantization
        )

    def app(token: str) -> Starlette:
        return worker_app(WorkerModel(load, make_engine), listening.queue, token)

    run_app(app, listening, announce)
