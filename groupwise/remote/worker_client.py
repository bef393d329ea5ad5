"""Several workers as the engine of a run.

`generate` cuts the requests into one run of neighbours for each worker and takes the answers in
order; one that dies has its share done by another, and is started again with the present weights if
it is this machine's. `sync` sends the policy's weights to all of them.
"""

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex, token_urlsafe
from urllib.parse import quote

from groupwise.config import Config
from groupwise.errors import ConfigError, EngineGoneError, ModelError
from groupwise.policy.load import Policy
from groupwise.remote.client import MAX_TEXT_BYTES, ServerClient, ServerUnavailable
from groupwise.remote.fingerprint import WorkerFingerprint, worker_difference, worker_fingerprint
from groupwise.remote.local_workers import (
    TOKEN_ENV,
    LocalWorker,
    check_server_packages,
    local_workers,
)
from groupwise.remote.payload import Checksum, Weights, WeightsStream, trained_weights
from groupwise.remote.pool import PooledServer, ServerPool, pooled
from groupwise.remote.worker_payload import (
    Answers,
    GenerateRequest,
    RunSettings,
    decode_response,
    encode_request,
    split_requests,
)
from groupwise.types import Request, Sampling

log = logging.getLogger("groupwise")

KIND, COMMAND = "rollout worker", "groupwise serve rollouts"


class WorkerClient(ServerClient):
    kind, command, slow_fix = KIND, COMMAND, "workers.timeout"

    def begin(self, settings: RunSettings) -> WorkerFingerprint:
        """From now on it works for this run; the fingerprint of its model."""
        body = settings.model_dump_json().encode()
        content = self.request_when_free("POST", "/begin", body, MAX_TEXT_BYTES)
        return self.describe(content, WorkerFingerprint)

    def send_weights(self, weights: Weights, run: str, version: int) -> None:
        """They are streamed: memory for one tensor, however large the model."""
        stream, checksum = WeightsStream(weights), Checksum()
        content = self.request(
            "PUT",
            f"/weights?run={quote(run)}&version={version}",
            (bytes(checksum.add(chunk)) for chunk in stream),
            headers={"Content-Length": str(stream.length)},
        )
        try:
            arrived = json.loads(content)["crc32"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerUnavailable("its reply to weights is none") from error
        if arrived != str(checksum):
            raise ServerUnavailable("weights arrived damaged")

    def generate(self, asked: GenerateRequest, vocab: int) -> Answers:
        body = encode_request(asked)
        try:
            content = self.request_when_free("POST", "/generate", body, asked.max_response_bytes)
        except MemoryError as error:
            raise ModelError(f"a rollout worker is {error}; lower engine.max_batch") from error
        return decode_response(content, asked, vocab)


@dataclass
class Worker:
    """A worker's client, and the process behind it where the trainer started that."""

    client: WorkerClient
    process: LocalWorker | None = None


class WorkersEngine:
    """WorkersEngine(policy, config) reaches every worker; close it to end those started here."""

    def __init__(self, policy: Policy, config: Config) -> None:
        settings = config.workers
        if config.engine.kind not in ("auto", "native", "transformers"):
            raise ConfigError(
                f"engine.kind={config.engine.kind} has processes of its own: leave workers out"
            )
        self.policy = policy
        self.fingerprint = worker_fingerprint(policy)
        self.keeps_copies = settings.staleness > 0
        self.settings = RunSettings(
            run=token_hex(16),
            adapter=config.adapter,
            engine=config.engine,
            compile=config.compile,
        )
        self.version: int | None = None
        self.weights: Weights = {}
        self.closed = False
        servers = _servers(config, policy)
        self.workers = [server.client for server in servers]
        self.pool: ServerPool[Worker, WorkerFingerprint] = ServerPool(
            servers,
            self._connect,
            KIND,
            f"Start one with `{COMMAND}`, name it in workers.urls"
            if settings.urls
            else "See above why, or sample in the trainer with workers.count=0",
            EngineGoneError,
        )
        try:
            self.pool.connect_all()
        except BaseException:
            self.close()
            raise

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Answers:
        if self.version is None:
            self.sync(version=0)
        version = self.version
        assert version is not None

        def sample(worker: Worker, _: WorkerFingerprint, own: tuple[Request, ...]) -> Answers:
            asked = GenerateRequest(own, sampling, self.settings.run, version)
            return worker.client.generate(asked, self.policy.vocab)

        parts = split_requests(requests, len(self.workers))
        return [answers for part in self.pool.spread(parts, sample) for answers in part]

    def sync(self, version: int) -> None:
        """Send the policy's present weights, unless the workers have that version already."""
        if version != self.version:
            self.publish(version, self.copy_weights())

    def copy_weights(self) -> Weights:
        """What `publish` takes: a copy on the CPU, or the weights themselves where the trainer
        waits until they are sent and sampled from."""
        weights = trained_weights(self.policy)
        if not self.keeps_copies:
            return weights
        return {name: weight.to("cpu", copy=True) for name, weight in weights.items()}

    def publish(self, version: int, weights: Weights) -> None:
        """All workers sample from these weights from now on; those that come later get them too.

        When none is left, that is for `generate` to say: then the step before it is whole.
        """
        if version == self.version:
            return
        self.version, self.weights = version, weights

        def send(worker: Worker, fingerprint: WorkerFingerprint) -> WorkerFingerprint:
            worker.client.send_weights(weights, self.settings.run, version)
            return fingerprint

        with suppress(EngineGoneError):
            self.pool.everywhere(send)

    def close(self) -> None:
        """No more; the workers started here end."""
        self.closed = True
        for worker in self.workers:
            if worker.process is not None:
                worker.process.stop()

    def _connect(self, worker: Worker) -> WorkerFingerprint:
        """Make a worker the run's own: process, settings, model, weights."""
        if self.closed:
            raise ModelError("the run is over, and its workers with it")
        if worker.process is not None:
            worker.client = replace(worker.client, url=worker.process.start())
        url = worker.client.url
        theirs = worker.client.begin(self.settings)
        difference = worker_difference(self.fingerprint, theirs)
        if difference is not None:
            raise ModelError(
                f"the {KIND} {url} has another model than this run: {difference}. "
                f"Start it with `{COMMAND}` and the run's `model:`"
            )
        if theirs.dtype != self.fingerprint.dtype:
            text = "the %s %s samples in %s and the trainer computes in %s: their log-probs differ"
            log.warning(text, KIND, url, theirs.dtype, self.fingerprint.dtype)
        if self.version is not None:
            worker.client.send_weights(self.weights, self.settings.run, self.version)
        return theirs


def _servers(config: Config, policy: Policy) -> list[PooledServer[Worker, WorkerFingerprint]]:
    settings, servers = config.workers, []
    if settings.count:
        check_server_packages()
        secret = token_urlsafe(24)
        client = WorkerClient("", secret, TOKEN_ENV, settings.timeout)
        for n, process in enumerate(local_workers(config, policy.device, secret)):
            name = f"number {n + 1} of this machine"
            servers.append(PooledServer(name, Worker(client, process), restarts=True))
    if settings.urls:
        for server in pooled(WorkerClient, settings, "workers.urls"):
            servers.append(PooledServer(server.name, Worker(server.client)))
    return servers
