"""`groupwise serve reference`: log-probs of a reference model over HTTP.

POST /logprobs  groups in, log-probs out (reference_payload.py)
GET /model      the model's fingerprint and how many tokens the server takes, as JSON
GET /metrics    Prometheus text
GET /health     200 while the model's thread is well; the only one that asks for no token

Requests that wait are computed together, up to a number of tokens, unless they ask for a forward
pass of their own (`exact`).
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from groupwise.batch import make_batch
from groupwise.policy.load import Policy, load_policy, pick_device, pick_dtype
from groupwise.policy.logprobs import batch_logprobs
from groupwise.remote.fingerprint import model_fingerprint
from groupwise.remote.guard import read_body
from groupwise.remote.model_loop import ModelLoop, short_memory_error
from groupwise.remote.payload import ModelLimits
from groupwise.remote.reference_client import ServedModel
from groupwise.remote.reference_payload import (
    LogprobsRequest,
    ReferenceLimits,
    decode_request,
    encode_response,
)
from groupwise.remote.running import Announce, Listening, run_app
from groupwise.remote.server import BINARY, JSON, build_app, computed_for, decoded

AnswerLogprobs = list[list[float]]
"""The log-probs of each answer of a request, in order."""


@dataclass(frozen=True)
class LogprobsJob:
    request: LogprobsRequest
    result: "Future[AnswerLogprobs]"


class ReferenceModel:
    """ReferenceModel(policy, 32768, 64): `submit(request)` gives a future of the log-probs."""

    def __init__(self, policy: Policy, tokens_at_once: int, queue_size: int) -> None:
        self.policy, self.tokens_at_once = policy, tokens_at_once
        self.thread = ModelLoop("reference model", queue_size)
        self._jobs: deque[LogprobsJob] = deque()
        self._lock = threading.Lock()

    @property
    def limits(self) -> ReferenceLimits:
        return ReferenceLimits(self.tokens_at_once, ModelLimits.of(self.policy))

    def submit(self, request: LogprobsRequest) -> "Future[AnswerLogprobs]":
        job = LogprobsJob(request, Future())
        with self._lock:
            self.thread.submit(self._compute_next)
            self._jobs.append(job)
        return job.result

    def _compute_next(self) -> None:
        with self._lock:  # what was taken along with an earlier one is no longer there
            jobs = take_together(self._jobs, self.tokens_at_once) if self._jobs else []
        self._compute([job for job in jobs if job.result.set_running_or_notify_cancel()])

    def _compute(self, jobs: Sequence[LogprobsJob]) -> None:
        if not jobs:
            return
        began, first = time.perf_counter(), jobs[0].request
        batch = make_batch([group for job in jobs for group in job.request.groups])
        try:
            logprobs_BT, _ = batch_logprobs(
                self.policy, batch, first.temperature, self.tokens_at_once, layout=first.layout
            )
        except (torch.OutOfMemoryError, MemoryError) as error:
            reason = short_memory_error(error)
            if len(jobs) == 1:
                jobs[0].result.set_exception(reason)
            for job in jobs if len(jobs) > 1 else ():
                self._compute([job])
            return
        except Exception as error:
            for job in jobs:
                job.result.set_exception(error)
            return
        tokens = sum(job.request.tokens for job in jobs)
        self.thread.count_work(len(jobs), tokens, time.perf_counter() - began)
        answers = iter(batch.unpadded(logprobs_BT))
        for job in jobs:
            job.result.set_result([next(answers) for _ in job.request.completions])


def take_together(jobs: deque[LogprobsJob], tokens_at_once: int) -> list[LogprobsJob]:
    """The first that waits, and those behind it that may share its forward pass."""
    first = jobs.popleft()
    taken, total = [first], first.request.tokens
    while jobs and not first.request.exact:
        following = jobs[0].request
        total += following.tokens
        fits = not following.exact and total <= tokens_at_once
        if not fits or _shared(following) != _shared(first.request):
            break
        taken.append(jobs.popleft())
    return taken


def _shared(request: LogprobsRequest) -> tuple[str, float, bool]:
    """What requests of one pass have in common."""
    own = all(c.temperature is not None for group in request.groups for c in group.completions)
    return request.layout, request.temperature, own


def reference_app(model: ReferenceModel, token: str) -> Starlette:
    """Closes the model's thread when it stops."""
    limits = model.limits
    served = ServedModel(fingerprint=model_fingerprint(model.policy), tokens=limits.tokens)

    async def logprobs(request: Request) -> Response:
        body = await read_body(request, limits.body_bytes)
        asked = await decoded(lambda: decode_request(body, limits))
        answers = await computed_for(request, lambda: model.submit(asked))
        content = await asyncio.to_thread(encode_response, answers, served.fingerprint.name)
        return Response(content, media_type=BINARY)

    async def describe(request: Request) -> Response:
        return Response(served.model_dump_json(), media_type=JSON)

    endpoints = [("POST", "/logprobs", logprobs), ("GET", "/model", describe)]
    return build_app("reference", model.thread, token, endpoints)


def serve_reference(
    model: str,
    device: str,
    precision: str,
    quantization: str | None,
    tokens: int,
    listening: Listening,
    announce: Announce,
) -> None:
    """Load a model and answer until stopped. `tokens`: in one forward pass."""

    def app(token: str) -> Starlette:
        place = pick_device(device)
        policy = load_policy(model, place, pick_dtype(precision, place), quantization=quantization)
        policy.model.requires_grad_(False)
        return reference_app(ReferenceModel(policy, tokens, listening.queue), token)

    run_app(app, listening, announce)
