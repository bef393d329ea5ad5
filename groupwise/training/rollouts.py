"""Where the loop gets its rollouts: sampled when they are asked for, ahead, or in flight.

Ahead and in flight (in_flight.py), answers are sampled in a thread of their own while a step is
learned from. Ahead, which weights sample a step is a function of its number (`Ahead.version_for`),
and steps are sampled in order. So timing changes nothing, and what is sampled and not yet learned
from, `state.pending`, is all that a checkpoint needs beside the state.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import NoReturn, Protocol

from torch import Tensor

from groupwise.config import Ahead, InFlight, InTurn
from groupwise.distributed.world import ALONE, World
from groupwise.load import Parts
from groupwise.rollout.collect import Rollout
from groupwise.rollout.engine import Engine, wait_for
from groupwise.rollout.engine_thread import EngineThread
from groupwise.training.clock import phase
from groupwise.training.collect import collect_step
from groupwise.training.exchange import own_share
from groupwise.training.in_flight import RolloutsInFlight
from groupwise.training.state import TrainState

Weights = list[tuple[str, Tensor]]
Collect = Callable[[int, int], Awaitable[Rollout]]
"""collect(step, cursor): the scored groups of a step, with problems from `cursor` on."""


class Rollouts(Protocol):
    def take(self) -> Rollout:
        """The groups of step `state.step`."""
        ...

    def follow(self) -> None:
        """The policy has just been updated."""
        ...

    def settled(self) -> AbstractContextManager[None]:
        """The state has all that is sampled and cannot be sampled again: it may be saved."""
        ...

    def up_to_date(self) -> AbstractContextManager[None]:
        """Settled, and the engine has the policy's present weights."""
        ...

    def close(self) -> None:
        """No more steps are wanted; the engine gets the last weights."""
        ...


def rollouts_for(parts: Parts, state: TrainState) -> Rollouts:
    config, engine = parts.config, parts.engine
    if not parts.samples:
        return RolloutsElsewhere(config.timing, config.steps, state, engine)
    state.pending = [own_share(rollout, parts.world) for rollout in state.pending]
    # The ranks that sample together, as they talk in this thread.
    world = replace(parts.world, group=state.optimizer.world.group)

    async def collect(step: int, cursor: int) -> Rollout:
        return await collect_step(parts, step, cursor)

    if isinstance(config.timing, Ahead):
        assert isinstance(engine, EngineThread)
        return RolloutsAhead(config.timing, config.steps, state, engine, collect, world)
    if isinstance(config.timing, InFlight):
        assert isinstance(engine, EngineThread)
        return RolloutsInFlight(config.timing, parts, state, engine, world)
    return RolloutsInTurn(state, engine, collect)


class RolloutsInTurn:
    """On-policy: a step is sampled when the one before it has been learned from."""

    def __init__(self, state: TrainState, engine: Engine, collect: Collect) -> None:
        self.state, self.engine, self.collect = state, engine, collect
        self.follow()

    def take(self) -> Rollout:
        if self.state.pending:
            return self.state.pending.pop(0)

        async def collected() -> Rollout:
            return await self.collect(self.state.step, self.state.cursor)

        return wait_for(collected())

    def follow(self) -> None:
        self.state.publish(self.engine)

    def settled(self) -> AbstractContextManager[None]:
        return nullcontext()

    def up_to_date(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        """The engine has the last weights already."""


class RolloutsElsewhere:
    """Of ranks for which rank 0 samples: they take part where weights are gathered for it."""

    def __init__(
        self, settings: InTurn | Ahead | InFlight, steps: int, state: TrainState, engine: Engine
    ) -> None:
        self.settings, self.steps, self.state, self.engine = settings, steps, state, engine
        self._first = state.step
        state.pending, state.open, state.complete = [], [], {}
        self.follow()

    def take(self) -> Rollout:
        return Rollout([], 0)

    def follow(self) -> None:
        ahead = self.settings if isinstance(self.settings, Ahead) else None
        if ahead is None or ahead.publishes(self.state.step, self._first, self.steps):
            self.state.publish(self.engine)

    def settled(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def up_to_date(self) -> Iterator[None]:
        if isinstance(self.settings, Ahead):
            self.state.publish(self.engine)
        yield

    def close(self) -> None:
        with self.up_to_date():
            pass


class RolloutsAhead:
    """Each step is sampled as soon as its weights are there, at most max_staleness ahead.

    A run that went on from a checkpoint has in `state.pending` what older weights owed. Where it
    does not (a finished run that gets more steps), the weights it starts from take their place.
    """

    def __init__(
        self,
        settings: Ahead,
        steps: int,
        state: TrainState,
        engine: EngineThread,
        collect: Collect,
        world: World = ALONE,
    ) -> None:
        self.settings, self.steps, self.state, self.world = settings, steps, state, world
        self.engine, self.collect = engine, collect
        self._first = state.step
        self._next = state.step + len(state.pending)
        self._cursor = state.cursor + sum(rollout.drawn for rollout in state.pending)
        self._handed: deque[tuple[int, Weights]] = deque()
        self._newest = -1
        self._busy = False
        self._until: int | None = None
        """While settling: the first step that is not sampled now."""
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._wake = asyncio.Event()
        self.follow()
        self._sampling = engine.start(self._run())

    def take(self) -> Rollout:
        with phase("generate"), self._changed:
            self._changed.wait_for(lambda: self.state.pending or self._error)
            if not self.state.pending:
                self._fail()
            return self.state.pending.pop(0)

    def follow(self) -> None:
        version = self.state.step
        if not self.settings.publishes(version, self._first, self.steps):
            return
        weights = copied(self.state.weights())
        with self._noting():
            self._handed.append((version, weights))
            self._newest = version

    @contextmanager
    def settled(self) -> Iterator[None]:
        with self._noting():
            begun = self._next + self._busy
            self._until = begun
        # Ranks that sample together finish what any of them has begun.
        until = self.world.max(begun)
        with self._noting():
            self._until = until
            self._changed.wait_for(lambda: self._error or not (self._busy or self._owes()))
            if self._error:
                self._fail()
        try:
            yield
        finally:
            with self._noting():
                self._until = None

    @contextmanager
    def up_to_date(self) -> Iterator[None]:
        with self.settled():
            self.state.publish(self.engine)
            yield

    def close(self) -> None:
        with self.up_to_date():
            assert self._next >= self.steps
        self._sampling.result()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Something changes that the other thread waits for."""
        with self._changed:
            yield
            self._changed.notify_all()
            self.engine.loop.call_soon_threadsafe(self._wake.set)

    def _version(self, step: int) -> int:
        return max(self._first, self.settings.version_for(step))

    def _owes(self) -> bool:
        """Whether the next step is to be sampled now: by older weights than the present ones, or
        because another rank has begun it."""
        older = self._next < self.steps and self._version(self._next) < self.state.step
        return older or (self._until is not None and self._next < self._until)

    def _may_start(self) -> bool:
        there = self._version(self._next) <= self._newest
        return there and (self._owes() or self._until is None)

    async def _run(self) -> None:
        try:
            while self._next < self.steps:
                with self._changed:
                    self._busy = self._may_start()
                    due = self._due_weights() if self._busy else None
                if self._busy:
                    await self._sample(due)
                else:
                    await self._wake.wait()
                    self._wake.clear()
        except BaseException as error:
            with self._noting():
                self._error, self._busy = error, False

    def _due_weights(self) -> tuple[int, Weights] | None:
        version = self._version(self._next)
        while self._handed and self._handed[0][0] < version:
            self._handed.popleft()
        waits = bool(self._handed) and self._handed[0][0] == version
        return self._handed.popleft() if waits else None

    async def _sample(self, due: tuple[int, Weights] | None) -> None:
        if due is not None:
            self.engine.load_weights(*due)
        rollout = await self.collect(self._next, self._cursor)
        with self._noting():
            self.state.pending.append(rollout)
            self._cursor += rollout.drawn
            self._next += 1
            self._busy = False

    def _fail(self) -> NoReturn:
        assert self._error is not None
        raise self._error


def copied(weights: Iterator[tuple[str, Tensor]]) -> Weights:
    """The weights as they are now: training goes on while they wait to be loaded."""
    return [(name, weight.clone()) for name, weight in weights]
