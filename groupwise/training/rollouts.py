"""Where the loop gets its rollouts: sampled when they are asked for, or ahead by a thread.

Ahead, the answers of later steps are sampled in workers while a step is learned from. Which weights
sample a step is a function of its number (`WorkerSettings.version_for`), and steps are sampled in
order by one thread, which owns the position in the data. So timing changes nothing, and what is
sampled and not yet learned from, `state.pending`, is all that a checkpoint needs beside the state.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import NoReturn, Protocol

from torch import Tensor

from groupwise.config import WorkerSettings
from groupwise.load import Parts
from groupwise.rollout.collect import Rollout
from groupwise.rollout.engine import Engine
from groupwise.training.clock import phase
from groupwise.training.collect import collect_step
from groupwise.training.state import TrainState

Collect = Callable[[int, int], Rollout]
"""collect(step, cursor): the scored groups of a step, with problems from `cursor` on."""


class PublishingEngine(Engine, Protocol):
    """An engine whose weights are a copy, made when it is told to."""

    def copy_weights(self) -> Mapping[str, Tensor]: ...

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None: ...


class Rollouts(Protocol):
    def take(self) -> Rollout:
        """The groups of step `state.step`."""
        ...

    def follow(self) -> None:
        """The policy has just been updated."""
        ...

    def settled(self) -> AbstractContextManager[None]:
        """Nothing is being sampled, and `state.pending` has every answer that older weights owe."""
        ...

    def up_to_date(self) -> AbstractContextManager[None]:
        """Settled, and the engine has the policy's present weights."""
        ...

    def close(self) -> None:
        """No more steps are wanted; the engine gets the last weights."""
        ...


def rollouts_for(parts: Parts, state: TrainState) -> Rollouts:
    config, collect = parts.config, partial(collect_step, parts)
    if config.workers.staleness:
        return Ahead(config.workers, config.steps, state, parts.engine, collect)  # pyright: ignore[reportArgumentType]
    return InTurn(state, parts.engine, collect)


class InTurn:
    """On-policy: a step is sampled when the one before it has been learned from."""

    def __init__(self, state: TrainState, engine: Engine, collect: Collect) -> None:
        self.state, self.engine, self.collect = state, engine, collect
        self.follow()

    def take(self) -> Rollout:
        if self.state.pending:
            return self.state.pending.pop(0)
        return self.collect(self.state.step, self.state.cursor)

    def follow(self) -> None:
        self.engine.sync(version=self.state.step)

    def settled(self) -> AbstractContextManager[None]:
        return nullcontext()

    def up_to_date(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        """The engine has the last weights already."""


class Ahead:
    """A thread samples each step as soon as its weights are there, at most max_staleness ahead.

    A run that went on from a checkpoint has in `state.pending` what older weights owed. Where it
    does not (a finished run that gets more steps), the weights it starts from take their place.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        steps: int,
        state: TrainState,
        engine: PublishingEngine,
        collect: Collect,
    ) -> None:
        self.settings, self.steps, self.state = settings, steps, state
        self.engine, self.collect = engine, collect
        self._first = state.step
        self._next = state.step + len(state.pending)
        self._cursor = state.cursor + sum(rollout.drawn for rollout in state.pending)
        self._handed: deque[tuple[int, Mapping[str, Tensor]]] = deque()
        self._newest = -1
        self._busy = self._settling = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.follow()
        self._thread = threading.Thread(target=self._run, name="rollouts ahead", daemon=True)
        self._thread.start()

    def take(self) -> Rollout:
        with phase("generate"), self._changed:
            self._changed.wait_for(lambda: self.state.pending or self._error)
            if not self.state.pending:
                self._fail()
            return self.state.pending.pop(0)

    def follow(self) -> None:
        version = self.state.step
        due = version == self._first or version % self.settings.publish_every == 0
        if not due or version > self._version(self.steps - 1):
            return
        weights = self.engine.copy_weights()
        with self._changed:
            self._handed.append((version, weights))
            self._newest = version
            self._changed.notify_all()

    @contextmanager
    def settled(self) -> Iterator[None]:
        with self._changed:
            self._settling = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error or not (self._busy or self._owes()))
            if self._error:
                self._fail()
        try:
            yield
        finally:
            with self._changed:
                self._settling = False
                self._changed.notify_all()

    @contextmanager
    def up_to_date(self) -> Iterator[None]:
        with self.settled():
            self.engine.sync(version=self.state.step)
            yield

    def close(self) -> None:
        with self.up_to_date():
            assert self._next >= self.steps
        self._thread.join()

    def _version(self, step: int) -> int:
        return max(self._first, self.settings.version_for(step))

    def _owes(self) -> bool:
        """Whether the next step is to be sampled by older weights than the present ones."""
        return self._next < self.steps and self._version(self._next) < self.state.step

    def _may_start(self) -> bool:
        there = self._version(self._next) <= self._newest
        return there and (self._owes() or not self._settling)

    def _run(self) -> None:
        try:
            while self._next < self.steps:
                with self._changed:
                    self._changed.wait_for(self._may_start)
                    self._busy = True
                    version = self._version(self._next)
                    while self._handed and self._handed[0][0] < version:
                        self._handed.popleft()
                    waits = bool(self._handed) and self._handed[0][0] == version
                    due = self._handed.popleft() if waits else None
                self._sample(due)
        except BaseException as error:
            with self._changed:
                self._error, self._busy = error, False
                self._changed.notify_all()

    def _sample(self, due: tuple[int, Mapping[str, Tensor]] | None) -> None:
        if due is not None:
            self.engine.publish(*due)
        rollout = self.collect(self._next, self._cursor)
        with self._changed:
            self.state.pending.append(rollout)
            self._cursor += rollout.drawn
            self._next += 1
            self._busy = False
            self._changed.notify_all()

    def _fail(self) -> NoReturn:
        assert self._error is not None
        raise self._error
