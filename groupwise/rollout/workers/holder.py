"""What a worker has: a policy, an engine for it, and whose weights at which version.

Everything here runs in the worker's one model thread. A run begins with `begin`; whoever began last
has the worker, and every order names its run and version, so that nobody gets answers by weights
that he did not mean.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from groupwise.config import AdapterSettings, EngineSettings
from groupwise.config.base import Settings
from groupwise.policy.load import Policy
from groupwise.rollout.engine import Engine
from groupwise.rollout.workers.marks import Marks, marks_of
from groupwise.rollout.workers.order import Answers, Bounds, Order
from groupwise.rollout.workers.weights import Receiving, trained_weights

log = logging.getLogger("groupwise")


class Start(Settings):
    """What a run tells a worker when it begins, so that it samples as the trainer would."""

    run: str = Field(min_length=8, max_length=64)
    """A name that no other run has."""
    adapter: AdapterSettings | None
    engine: EngineSettings
    compile: Literal["auto", "all", "sampling", "none"]


class OtherWeights(Exception):
    """The worker has other weights than those that were asked for; the message says which."""


@dataclass(frozen=True)
class Making:
    """How a worker gets its model, with an adapter or without, and an engine for it."""

    policy: Callable[[AdapterSettings | None], Policy]
    engine: Callable[[Policy, Start], Engine]


class Holder:
    def __init__(self, making: Making) -> None:
        self.making = making
        self.policy = making.policy(None)
        self.adapter: AdapterSettings | None = None
        self.engine: Engine | None = None
        self.start: Start | None = None
        self.version: int | None = None
        self.bounds = _bounds(self.policy)
        self._as_loaded = True

    def begin(self, start: Start) -> Marks:
        """Belong to this run from now on. Its first weights are still to come."""
        self.version = None
        changed = start.adapter != self.adapter
        # Below an adapter must lie the model as it was loaded, not what another run made of it.
        if changed or (start.adapter is not None and not self._as_loaded):
            self.engine = None
            self.policy = self.making.policy(start.adapter)
            self.adapter, self._as_loaded = start.adapter, True
        kept = self.start is not None and (self.start.engine, self.start.compile) == (
            start.engine,
            start.compile,
        )
        if self.engine is None or not kept:
            self.engine = self.making.engine(self.policy, start)
        self.start = start
        return marks_of(self.policy)

    def receive(self, run: str, version: int, pieces: Iterable[bytes | bytearray]) -> str:
        """New weights, straight into the model; their checksum. Torn ones leave it without any."""
        self._expect(run)
        assert self.engine is not None
        self.version = None
        self._as_loaded = self._as_loaded and self.policy.adapter is not None
        receiving = Receiving(trained_weights(self.policy))
        for piece in pieces:
            receiving.feed(piece)
        checksum = receiving.finish()
        self.engine.sync(version)
        self.version = version
        return checksum

    def generate(self, order: Order) -> Answers:
        self._expect(order.run)
        if self.version != order.version:
            has = "none" if self.version is None else self.version
            wanted = f"weights of version {order.version}"
            raise OtherWeights(f"it was asked for {wanted}, and has {has}")
        assert self.engine is not None
        return self.engine.generate(order.requests, order.sampling)

    def _expect(self, run: str) -> None:
        if self.start is None:
            raise OtherWeights("it was started again and has no weights of this run")
        if self.start.run != run:
            raise OtherWeights("another run has begun with it since")


def _bounds(policy: Policy) -> Bounds:
    config = policy.model.config.get_text_config()
    return Bounds(policy.vocab, getattr(config, "max_position_embeddings", None))
