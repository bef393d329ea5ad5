"""`groupwise serve rollouts`: a worker that samples answers for a run.

POST /begin     a run's settings in, the fingerprint of the worker's model out; JSON
PUT /weights    ?run=...&version=7 with a safetensors file as the body; its CRC-32 out, JSON
POST /generate  prompts in, answers out (worker_payload.py)
GET /model      whose weights it has, JSON
GET /metrics    Prometheus text
GET /health     200 while it can sample or take weights; the only one that asks for no token

A run begins with /begin; whoever began last has the worker, and every request names its run and
version, so that nobody gets answers by weights that he did not mean.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from groupwise.config import AdapterSettings
from groupwise.policy.load import Policy, load_policy, pick_device, pick_dtype
from groupwise.remote.fingerprint import WorkerFingerprint, worker_fingerprint
from groupwise.remote.guard import HTTPRefusal, body_chunks, read_body
from groupwise.remote.model_thread import ModelThread
from groupwise.remote.payload import (
    CHUNK_BYTES,
    WeightsReceiver,
    first_problem,
    trained_weights,
)
from groupwise.remote.running import Announce, Listening, run_app
from groupwise.remote.server import BINARY, JSON, build_app, computed, computed_for, decoded
from groupwise.remote.worker_payload import (
    MAX_BODY_BYTES,
    Answers,
    GenerateRequest,
    ModelLimits,
    RunSettings,
    decode_request,
    encode_response,
)
from groupwise.rollout.engine import Engine

MAX_SETTINGS_BYTES = 65536
UNWELL_SECONDS = 5.0
"""Of silence in the middle of an upload, after which /health says so."""

LoadPolicy = Callable[[AdapterSettings | None], Policy]
MakeEngine = Callable[[Policy, RunSettings], Engine]


class WorkerModel:
    """A policy, an engine for it, and whose weights at which version.

    All methods run in the worker's one model thread. While weights are on their way there is no
    version, so nobody samples from half of them, and the thread is free for others.
    """

    def __init__(self, load: LoadPolicy, make_engine: MakeEngine) -> None:
        self._load, self._make_engine = load, make_engine
        self.policy = load(None)
        self.adapter: AdapterSettings | None = None
        self.engine: Engine | None = None
        self.settings: RunSettings | None = None
        self.version: int | None = None
        config = self.policy.model.config.get_text_config()
        self.limits = ModelLimits(
            self.policy.vocab, getattr(config, "max_position_embeddings", None)
        )
        self.max_rank: int = config.hidden_size
        self._as_loaded = True
        self._receiver: WeightsReceiver | None = None
        self._last_chunk = 0.0

    def begin(self, settings: RunSettings) -> WorkerFingerprint:
        """Belong to this run from now on. Its first weights are still to come."""
        self.version = self._receiver = None
        changed = settings.adapter != self.adapter
        # Below an adapter must lie the model as it was loaded, not what another run made of it.
        if changed or (settings.adapter is not None and not self._as_loaded):
            self.engine = None
            self.policy = self._load(settings.adapter)
            self.adapter, self._as_loaded = settings.adapter, True
        before = self.settings
        kept = before is not None and (before.engine, before.compile) == (
            settings.engine,
            settings.compile,
        )
        if self.engine is None or not kept:
            self.engine = self._make_engine(self.policy, settings)
        self.settings = settings
        return worker_fingerprint(self.policy)

    def receive(self, run: str) -> WeightsReceiver:
        """New weights come, straight into the model; until all are there it has none."""
        self._expect(run)
        self.version = None
        self._as_loaded = self._as_loaded and self.policy.adapter is not None
        receiver = WeightsReceiver(trained_weights(self.policy))
        self._receiver, self._last_chunk = receiver, time.monotonic()
        return receiver

    def feed(self, receiver: WeightsReceiver, chunk: bytes | bytearray) -> None:
        if receiver is not self._receiver:
            raise HTTPRefusal(409, "another upload has begun since")
        self._last_chunk = time.monotonic()
        receiver.feed(chunk)

    def finish(self, receiver: WeightsReceiver, version: int) -> str:
        """Sample from what arrived; its checksum."""
        self.feed(receiver, b"")
        checksum = receiver.finish()
        assert self.engine is not None
        self.engine.sync(version)
        self.version, self._receiver = version, None
        return checksum

    def give_up(self, receiver: WeightsReceiver) -> None:
        if receiver is self._receiver:
            self._receiver = None

    def generate(self, asked: GenerateRequest) -> Answers:
        self._expect(asked.run)
        if self.version != asked.version:
            has = "none" if self.version is None else self.version
            wanted = f"weights of version {asked.version}"
            raise HTTPRefusal(409, f"it was asked for {wanted}, and has {has}")
        assert self.engine is not None
        return self.engine.generate(asked.requests, asked.sampling)

    def problem(self) -> str | None:
        silent = time.monotonic() - self._last_chunk
        if self._receiver is None or silent < UNWELL_SECONDS:
            return None
        return f"an upload of weights has stalled for {silent:.0f} s"

    def _expect(self, run: str) -> None:
        if self.settings is None:
            raise HTTPRefusal(409, "it was started again and has no weights of this run")
        if self.settings.run != run:
            raise HTTPRefusal(409, "another run has begun with it since")


class _Endpoints:
    def __init__(self, worker: WorkerModel, thread: ModelThread) -> None:
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
            raise HTTPRefusal(400, f"{text}, {self.worker.max_rank}: it could hold any change")
        work = partial(self.worker.begin, settings)
        fingerprint = await computed_for(request, lambda: self.thread.submit(work))
        return Response(fingerprint.model_dump_json(), media_type=JSON)

    async def feed(self, receiver: WeightsReceiver, chunk: bytearray) -> None:
        await computed(lambda: self.thread.submit(partial(self.worker.feed, receiver, chunk)))

    async def weights(self, request: Request) -> Response:
        run, version = (request.query_params.get(name, "") for name in ("run", "version"))
        if not (version.isascii() and version.isdigit() and len(version) < 16):
            raise HTTPRefusal(400, "weights need ?run=... and &version=..., which is a number")
        receiver = await computed(lambda: self.thread.submit(partial(self.worker.receive, run)))
        try:
            # The next chunk arrives while the one before it is copied.
            copied, gathered = asyncio.ensure_future(asyncio.sleep(0)), bytearray()
            async for chunk in body_chunks(request, receiver.max_bytes):
                gathered += chunk
                if len(gathered) >= CHUNK_BYTES:
                    await copied
                    copied = asyncio.ensure_future(self.feed(receiver, gathered))
                    gathered = bytearray()
            await copied
            await self.feed(receiver, gathered)
            done = partial(self.worker.finish, receiver, int(version))
            checksum = await computed(lambda: self.thread.submit(done))
        finally:
            self.worker.give_up(receiver)
        return JSONResponse({"version": int(version), "crc32": checksum})

    async def generate(self, request: Request) -> Response:
        body = await read_body(request, MAX_BODY_BYTES)
        asked = await decoded(lambda: decode_request(body, self.worker.limits))

        def work() -> bytes:
            began = time.perf_counter()
            answers = self.worker.generate(asked)
            tokens = sum(len(c.tokens) for group in answers for c in group)
            self.thread.count_work(asked.answers, tokens, time.perf_counter() - began)
            return encode_response(answers, asked)

        content = await computed_for(request, lambda: self.thread.submit(work))
        return Response(content, media_type=BINARY)

    async def model(self, request: Request) -> Response:
        run = None if self.worker.settings is None else self.worker.settings.run
        state = {"vocab": self.worker.limits.vocab, "run": run, "version": self.worker.version}
        return JSONResponse(state)


def worker_app(worker: WorkerModel, places: int, token: str) -> Starlette:
    """`places`: requests that may wait for the model."""
    own = _Endpoints(worker, ModelThread("policy", places))
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
