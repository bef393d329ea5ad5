"""What a rollout worker holds: a policy, an engine for it, and whose weights at which version."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from groupwise.config import AdapterSettings
from groupwise.policy.load import Policy
from groupwise.policy.weights import trained_weights
from groupwise.remote.fingerprint import WorkerFingerprint, worker_fingerprint
from groupwise.remote.guard import HTTPRefusal
from groupwise.remote.payload import Checksum, ModelLimits, max_weights_bytes, received_weights
from groupwise.remote.sparse_weights import DifferenceRefused, WeightsDifference
from groupwise.remote.worker_payload import GenerateRequest, RunSettings
from groupwise.rollout.engine import Engine
from groupwise.types import Completion, Request

UNWELL_SECONDS = 5.0
"""Of silence in the middle of an upload, after which /health says so."""

LoadPolicy = Callable[[AdapterSettings | None], Policy]
MakeEngine = Callable[[Policy, RunSettings], Engine]
Done = Callable[[int, tuple[Completion, ...], float], None]
"""done(number, answers, seconds), when all answers to a prompt are there."""


class Upload:
    """A body on its way from the network to the model's thread, one chunk at a time."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self._changed = threading.Condition()
        self._chunk: bytes | bytearray | None = None
        self._ended = False
        self._error: Exception | None = None

    def put(self, chunk: bytes | bytearray) -> None:
        """Waits until the one before it is taken, or nobody wants more."""
        with self._changed:
            self._changed.wait_for(lambda: self._chunk is None or self._error)
            self.last, self._chunk = time.monotonic(), chunk
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes | bytearray]:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._error or self._ended or self._chunk is not None
                )
                if self._error is not None:
                    raise self._error
                chunk, self._chunk = self._chunk, None
                self._changed.notify_all()
            if chunk is None:
                return
            yield chunk


class WorkerModel:
    """`begin`, `load`, `change` and `sample` run in the worker's one model thread.

    New weights have the thread to themselves, so no token is drawn by half of them. Answers that
    grow meanwhile go on by the new ones; where weights did not arrive whole there are none, and no
    answers.
    """

    def __init__(self, load: LoadPolicy, make_engine: MakeEngine) -> None:
        self._load, self._make_engine = load, make_engine
        self.policy = load(None)
        self.adapter: AdapterSettings | None = None
        self.engine: Engine | None = None
        self.settings: RunSettings | None = None
        self.version: int | None = None
        self.limits = ModelLimits.of(self.policy)
        self.max_rank: int = self.policy.model.config.get_text_config().hidden_size
        self._as_loaded = True
        self._upload: Upload | None = None
        self._sampling: set[asyncio.Task[None]] = set()

    @property
    def max_weights_bytes(self) -> int:
        return max_weights_bytes(trained_weights(self.policy))

    def begin(self, settings: RunSettings) -> WorkerFingerprint:
        """Belong to this run from now on. Its first weights are still to come."""
        self._stop_sampling()
        self.version = None
        changed = settings.adapter != self.adapter
        # Below an adapter must lie the model as it was loaded, not what another run made of it.
        if changed or (settings.adapter is not None and not self._as_loaded):
            self._close_engine()
            self.policy = self._load(settings.adapter)
            self.adapter, self._as_loaded = settings.adapter, True
        before = self.settings
        kept = before is not None and (before.engine, before.compile) == (
            settings.engine,
            settings.compile,
        )
        if self.engine is None or not kept:
            self._close_engine()
            self.engine = self._make_engine(self.policy, settings)
        self.settings = settings
        return worker_fingerprint(self.policy)

    def begin_upload(self) -> Upload:
        """In place of one that has not ended."""
        self.interrupt_upload()
        self._upload = Upload()
        return self._upload

    def interrupt_upload(self) -> None:
        """The model's thread waits for it, and is needed."""
        if self._upload is not None:
            self._upload.fail(HTTPRefusal(409, "another upload has begun since"))
            self._upload = None

    def load(self, run: str, version: int, upload: Upload) -> str:
        """Sample from the weights that come, from now on; their checksum."""
        checksum, targets = Checksum(), trained_weights(self.policy)
        try:
            with self._changing(run, version) as engine:
                weights = received_weights(upload, targets, checksum)
                engine.load_weights(version, weights)
                for _ in weights:  # those that the engine did not ask for
                    pass
        except Exception as error:
            upload.fail(error)
            raise
        finally:
            if self._upload is upload:
                self._upload = None
        return str(checksum)

    def change(self, run: str, version: int, base: int, body: bytes) -> str:
        """Sample from version `base` with what the body says is different; the result's checksum.

        Nothing is changed by a body that is damaged, or meant for other weights than there are.
        """
        self.expect(run)
        if self.version != base:
            raise HTTPRefusal(412, f"it does not have weights of version {base}")
        try:
            difference = WeightsDifference(body, trained_weights(self.policy))
        except DifferenceRefused as error:
            raise HTTPRefusal(412, str(error)) from error
        with self._changing(run, version) as engine:
            engine.load_weights(version, difference)
            for _ in difference:
                pass
        return difference.checksum()

    async def sample(self, asked: GenerateRequest, done: Done) -> None:
        """All requests enter the engine at once, and each is done when its own answers are."""
        self.expect(asked.run)
        if self.version is None or asked.version not in (None, self.version):
            has = "none" if self.version is None else self.version
            wanted = "any" if asked.version is None else f"version {asked.version}"
            raise HTTPRefusal(409, f"it was asked for weights of {wanted}, and has {has}")
        engine = self.engine
        assert engine is not None

        async def one(number: int, request: Request) -> None:
            began = time.perf_counter()
            answers = await engine.sample(request, asked.sampling)
            done(number, answers, time.perf_counter() - began)

        tasks = [asyncio.create_task(one(n, request)) for n, request in enumerate(asked.requests)]
        self._sampling.update(tasks)
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            self._sampling.difference_update(tasks)

    def problem(self) -> str | None:
        upload = self._upload
        silent = 0.0 if upload is None else time.monotonic() - upload.last
        stalled = silent > UNWELL_SECONDS
        return f"an upload of weights has stalled for {silent:.0f} s" if stalled else None

    def expect(self, run: str) -> None:
        if self.settings is None:
            raise HTTPRefusal(409, "it was started again and has no weights of this run")
        if self.settings.run != run:
            raise HTTPRefusal(409, "another run uses it now")

    @contextmanager
    def _changing(self, run: str, version: int) -> Iterator[Engine]:
        """There are no weights until all have arrived, and no answers by some of them."""
        self.expect(run)
        assert self.engine is not None
        self.version = None
        self._as_loaded = self._as_loaded and self.policy.adapter is not None
        try:
            yield self.engine
        except BaseException:
            self._stop_sampling()
            raise
        self.version = version

    def _stop_sampling(self) -> None:
        for task in self._sampling:
            task.cancel()

    def _close_engine(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.engine = None
