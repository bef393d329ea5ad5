"""Several workers as the engine of a run.

Requests that come at the same time are split into one contiguous part for each worker, and each
request returns when its own answers are there. The open requests of a worker that dies go to
another one; a worker on this machine is started again and gets the present weights.
`load_weights` sends weights to all workers.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from secrets import token_hex
from urllib.parse import quote

from torch import Tensor

from groupwise.config import Config
from groupwise.errors import ModelError
from groupwise.policy.load import Policy
from groupwise.remote.client import (
    MAX_TEXT_BYTES,
    BaseRefused,
    HttpReply,
    ServerClient,
    ServerUnavailable,
)
from groupwise.remote.event_loop import client_loop
from groupwise.remote.fingerprint import WorkerFingerprint, worker_difference, worker_fingerprint
from groupwise.remote.local_servers import rollout_workers
from groupwise.remote.payload import BadPayload, Checksum, Frames, WeightsStream
from groupwise.remote.pool import PooledServer
from groupwise.remote.published_weights import PublishedWeights
from groupwise.remote.remote_engine import RemoteEngine
from groupwise.remote.worker_payload import (
    GenerateRequest,
    RunSettings,
    decode_response,
    encode_request,
    split_requests,
)
from groupwise.types import Completion, Request, Sampling

log = logging.getLogger("groupwise")

KIND, COMMAND = "rollout worker", "groupwise serve rollouts"
Done = Callable[[int, tuple[Completion, ...]], None]
Waiting = tuple[Request, "Future[tuple[Completion, ...]]"]


class WorkerClient(ServerClient):
    kind, command, slow_fix = KIND, COMMAND, "place.timeout"

    async def begin(self, settings: RunSettings) -> WorkerFingerprint:
        """From now on it works for this run; the fingerprint of its model."""
        body = settings.model_dump_json().encode()
        content = await self.post("/begin", body, MAX_TEXT_BYTES)
        return self.describe(content, WorkerFingerprint)

    async def send_weights(self, published: PublishedWeights, run: str, has: int | None) -> None:
        """What is different from the version that it has, where that is known; else all, as a
        stream: memory for one tensor, however large the model."""
        path = f"/weights?run={quote(run)}&version={published.version}"
        if published.difference is not None and has is not None and has == published.base:
            with suppress(BaseRefused):
                there = await self._put(f"{path}&base={has}", published.difference)
                if there == published.checksum:
                    return
                log.warning("%s %s has other weights than were sent", KIND, self.url)
        stream, checksum = WeightsStream(published.weights), Checksum()
        chunks = (bytes(checksum.add(chunk)) for chunk in stream)
        if await self._put(path, chunks, stream.length) != str(checksum):
            raise ServerUnavailable("the weights were damaged on the way")

    async def generate(self, asked: GenerateRequest, vocab: int, done: Done) -> None:
        """`done(number, answers)` as soon as the answers to a request are there."""

        def take(status: int, number: int, content: bytes) -> None:
            if status != 200:
                raise self.failure(HttpReply("/generate", status, content))
            if number >= len(asked.requests):
                raise BadPayload("the reply is to another request")
            done(number, decode_response(content, asked.requests[number], asked, vocab))
            answered.add(number)

        answered, body, most = set[int](), encode_request(asked), asked.max_response_bytes
        try:
            await self.post("/generate", body, most, Frames(take).feed)
        except MemoryError as error:
            raise ModelError(f"a rollout worker is {error}; lower engine.max_batch") from error
        if len(answered) < len(asked.requests):
            raise BadPayload("the reply ended before the answers did")

    async def _put(
        self, path: str, body: bytes | Iterable[bytes], length: int | None = None
    ) -> object:
        """The checksum that it says it has then."""
        headers = {} if length is None else {"Content-Length": str(length)}
        content = await self.request("PUT", path, body, headers=headers)
        try:
            return json.loads(content)["checksum"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerUnavailable("its reply to an upload of weights is not valid") from error


@dataclass(frozen=True)
class WorkerState:
    fingerprint: WorkerFingerprint
    version: int | None
    """Of the weights that it has."""


class WorkersEngine(RemoteEngine[WorkerClient, WorkerState]):
    """WorkersEngine(policy, config) reaches every worker; close it to end those started here."""

    def __init__(self, policy: Policy, config: Config) -> None:
        super().__init__(policy, config, WorkerClient, partial(rollout_workers, config))
        self.fingerprint = worker_fingerprint(policy)
        self.settings = RunSettings(
            run=token_hex(16),
            adapter=config.adapter,
            engine=config.engine,
            compile=config.compile,
            fp8=config.fp8,
        )
        self.published = PublishedWeights()
        self._waiting: dict[Sampling, list[Waiting]] = {}
        self.connect()

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        if not request.keys:
            return ()
        self.load_first_weights()
        if not self._waiting:  # after all that ask at the same time
            asyncio.get_running_loop().call_soon(self._send)
        future: Future[tuple[Completion, ...]] = Future()
        self._waiting.setdefault(sampling, []).append((request, future))
        return await asyncio.wrap_future(future)

    def keep_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.published.update(version, weights)

    async def send_weights(self, client: WorkerClient, state: WorkerState) -> WorkerState:
        await client.send_weights(self.published, self.settings.run, state.version)
        return replace(state, version=self.version)

    async def check(self, client: WorkerClient) -> WorkerState:
        """Make a worker the run's own."""
        theirs = await client.begin(self.settings)
        difference = worker_difference(self.fingerprint, theirs)
        if difference is not None:
            raise ModelError(
                f"the {KIND} {client.url} has another model than this run: {difference}. "
                f"Start it with `{COMMAND}` and the run's `model:`"
            )
        if theirs.dtype != self.fingerprint.dtype:
            text = "the %s %s samples in %s and the trainer computes in %s: their log-probs differ"
            log.warning(text, KIND, client.url, theirs.dtype, self.fingerprint.dtype)
        return WorkerState(theirs, None)

    def _send(self) -> None:
        """What waits, in one run of neighbours for each worker.

        How it is cut, and that the parts stay apart, depends on neither time nor who is there: so
        each answer is in the same batch whenever the run is repeated, to the last digit. In flight
        that cannot be had, and each goes to who has least to do.
        """
        waiting, self._waiting = self._waiting, {}
        for sampling, pairs in waiting.items():
            futures = iter([future for _, future in pairs])
            apart: set[PooledServer[WorkerClient, WorkerState]] | None
            apart = None if self.in_flight else set()
            for part in split_requests([request for request, _ in pairs], len(self.pool.servers)):
                own = list(islice(futures, len(part)))
                work = client_loop().start(self._sample(part, sampling, own, apart))
                cancel_together(own, work)

    async def _sample(
        self,
        requests: tuple[Request, ...],
        sampling: Sampling,
        futures: Sequence["Future[tuple[Completion, ...]]"],
        apart: set[PooledServer[WorkerClient, WorkerState]] | None,
    ) -> None:
        version = None if self.in_flight else self.version
        asked = GenerateRequest(requests, sampling, self.settings.run, version)

        def done(number: int, answers: tuple[Completion, ...]) -> None:
            if not futures[number].done():
                futures[number].set_result(answers)

        async def work(client: WorkerClient, _: WorkerState) -> None:
            await client.generate(asked, self.policy.vocab, done)

        try:
            await self.pool.do(work, load=asked.answers, apart=apart)
        except Exception as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)


def cancel_together(
    futures: Sequence["Future[tuple[Completion, ...]]"], work: "Future[None]"
) -> None:
    """Work for which nobody waits any more ends."""

    def ended(future: "Future[tuple[Completion, ...]]") -> None:
        if future.cancelled() and all(other.done() for other in futures):
            work.cancel()

    for future in futures:
        future.add_done_callback(ended)
