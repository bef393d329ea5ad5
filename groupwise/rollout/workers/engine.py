"""Several workers as the engine of a run.

`generate` cuts the requests into one run of neighbours for each worker and takes the answers in
order; one that dies has its share done by another, and is started again with the present weights if
it is this machine's. `sync` sends the policy's weights to all of them.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex, token_urlsafe

from groupwise.config import Config
from groupwise.errors import ConfigError, EngineGoneError, ModelError
from groupwise.policy.load import Policy
from groupwise.rollout.workers.holder import Start
from groupwise.rollout.workers.local import TOKEN_VARIABLE, LocalWorker, local_workers
from groupwise.rollout.workers.marks import Marks, difference, marks_of
from groupwise.rollout.workers.order import Answers, Order, cut
from groupwise.rollout.workers.weights import Weights, trained_weights
from groupwise.rollout.workers.worker import Worker
from groupwise.serve.client import token_in
from groupwise.serve.links import Link, Links
from groupwise.serve.running import with_server_packages
from groupwise.types import Request, Sampling

log = logging.getLogger("groupwise")

COMMAND = "groupwise serve rollouts"
WHAT = "rollout worker"


@dataclass
class Hand:
    """A worker, and the process behind it where the trainer started that."""

    worker: Worker
    local: LocalWorker | None = None


class WorkersEngine:
    """WorkersEngine(policy, config) reaches every worker; close it to end those started here."""

    def __init__(self, policy: Policy, config: Config) -> None:
        settings = config.workers
        if config.engine.kind not in ("auto", "native", "transformers"):
            raise ConfigError(
                f"engine.kind={config.engine.kind} has processes of its own: leave workers out"
            )
        self.policy = policy
        self.marks = marks_of(policy)
        self.keeps_copies = settings.staleness > 0
        self.start = Start(
            run=token_hex(16),
            adapter=config.adapter,
            engine=config.engine,
            compile=config.compile,
        )
        self.version: int | None = None
        self.weights: Weights = {}
        self.closed = False
        self.hands = _hands(config, policy)
        mend = (
            f"Start one with `{COMMAND}`, name it in workers.urls"
            if settings.urls
            else "See above why, or sample in the trainer with workers.count=0"
        )
        self.links = Links[Hand, Marks](
            [
                Link(
                    hand.worker.url or f"number {n + 1} of this machine",
                    hand,
                    aside_seconds=0.0 if hand.local else None,
                )
                for n, hand in enumerate(self.hands)
            ],
            self._reach,
            WHAT,
            mend,
            EngineGoneError,
        )
        try:
            self.links.begin()
        except BaseException:
            self.close()
            raise

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> Answers:
        if self.version is None:
            self.sync(version=0)
        version = self.version
        assert version is not None

        def sample(hand: Hand, marks: Marks, piece: tuple[Request, ...]) -> Answers:
            order = Order(piece, sampling, self.start.run, version)
            return hand.worker.generate(order, self.policy.vocab)

        pieces = cut(requests, len(self.hands))
        return [answers for part in self.links.spread(pieces, sample) for answers in part]

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
        with suppress(EngineGoneError):
            self.links.everywhere(lambda hand, _: self._send(hand))

    def close(self) -> None:
        """No more; the workers started here end."""
        self.closed = True
        for hand in self.hands:
            if hand.local is not None:
                hand.local.stop()

    def _reach(self, hand: Hand) -> Marks:
        """Make a worker the run's own: process, settings, model, weights."""
        if self.closed:
            raise ModelError("the run is over, and its workers with it")
        if hand.local is not None:
            hand.worker = replace(hand.worker, url=hand.local.start())
        marks = hand.worker.begin(self.start)
        other = difference(self.marks, marks)
        if other is not None:
            raise ModelError(
                f"the {WHAT} {hand.worker.url} has another model than this run: {other}. "
                f"Start it with `{COMMAND}` and the run's `model:`"
            )
        if marks.dtype != self.marks.dtype:
            log.warning(
                "the %s %s samples in %s and the trainer computes in %s: their log-probs differ",
                WHAT,
                hand.worker.url,
                marks.dtype,
                self.marks.dtype,
            )
        if self.version is not None:
            self._send(hand)
        return marks

    def _send(self, hand: Hand) -> None:
        assert self.version is not None
        hand.worker.send(self.weights, self.start.run, self.version)


def _hands(config: Config, policy: Policy) -> list[Hand]:
    settings = config.workers
    found: list[Hand] = []
    if settings.count:
        with_server_packages()
        secret = token_urlsafe(24)
        unknown = Worker("", secret, TOKEN_VARIABLE, settings.timeout, WHAT)
        found += [Hand(unknown, local) for local in local_workers(config, policy.device, secret)]
    if settings.urls:
        token = token_in(settings.token_env, "workers.urls", COMMAND)
        for url in settings.urls:
            worker = Worker(url.rstrip("/"), token, settings.token_env, settings.timeout, WHAT)
            found.append(Hand(worker))
    return found
