"""Where the loop gets its rollouts: sampled when they are asked for, ahead, or in flight.

Ahead and in flight (in_flight.py), answers are sampled in a thread of their own while a step is
learned from. Ahead, the version of the weights that sample a step is a function of the step's
number (`Ahead.version_for`), and steps are sampled in order. So results do not depend on timing,
and beside the state a checkpoint needs only `state.pending`: what is sampled and not learned from.

Evaluations are sampled in the background too (`in_background`): with the weights that they measure,
after the steps that those weights have to sample and before newer weights are loaded. They are
never in a batch with a step's answers, so they change nothing in a run.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_until_done
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from groupwise.config import Ahead, InFlight, InTurn
from groupwise.distributed.world import ALONE, World
from groupwise.load import Parts
from groupwise.rollout.engine import Engine, run_sync
from groupwise.rollout.engine_thread import EngineThread
from groupwise.rollout.groups import Rollout
from groupwise.training.clock import phase
from groupwise.training.collect import collect_step
from groupwise.training.exchange import own_share
from groupwise.training.in_flight import RolloutsInFlight
from groupwise.training.state import TrainState

Weights = list[tuple[str, Tensor]]
Collect = Callable[[int, int], Coroutine[Any, Any, Rollout]]
"""collect(step, cursor): the scored groups of a step, with problems from `cursor` on."""
Work = Callable[[], Any]


class Rollouts(Protocol):
    def take(self) -> Rollout:
        """The groups of step `state.step`."""
        ...

    def policy_updated(self) -> None:
        """The policy has new weights: pass them to the engine when it should sample with them."""
        ...

    def ready_to_save(self) -> AbstractContextManager[None]:
        """While this is open the state may be saved: it has all answers that could not be sampled
        again."""
        ...

    def in_background(self, work: Work) -> "Future[Any]":
        """Run work that samples with the policy's present weights while training continues. One at
        a time; it ends before the engine gets newer weights."""
        ...

    def close(self) -> None:
        """No more steps are needed: wait for background work, and give the engine the last
        weights."""
        ...


def rollouts_for(parts: Parts, state: TrainState) -> Rollouts:
    config, timing, thread = parts.config, parts.config.timing, parts.thread
    if not parts.samples:
        return RolloutsElsewhere(timing, config.steps, state, parts.engine)
    state.pending = [own_share(rollout, parts.world) for rollout in state.pending]
    # The ranks that sample together, as they talk in this thread.
    world = replace(parts.world, group=state.optimizer.world.group)
    collect = partial(collect_step, parts)
    if timing.kind == "in_turn":
        return RolloutsInTurn(state, parts.engine, collect, elsewhere=config.place.kind != "here")
    assert thread is not None
    if timing.kind == "ahead":
        return RolloutsAhead(timing, config.steps, state, thread, collect, world)
    return RolloutsInFlight(timing, parts, state, thread, world)


class RolloutsInTurn:
    """On-policy: a step is sampled when the one before it has been learned from.

    Engines `elsewhere`, in other processes, do background work while a step is learned from.
    """

    def __init__(
        self, state: TrainState, engine: Engine, collect: Collect, *, elsewhere: bool = False
    ) -> None:
        self.state, self.engine, self.collect = state, engine, collect
        self.elsewhere = elsewhere
        self._free = threading.Event()
        self._background: Future[Any] | None = None
        self.policy_updated()

    def take(self) -> Rollout:
        state = self.state
        if state.pending:
            rollout = state.pending.pop(0)
        else:
            rollout = run_sync(self.collect(state.step, state.cursor))
        self._free.set()
        return rollout

    def policy_updated(self) -> None:
        self._finish_background()
        self.state.publish(self.engine)

    def ready_to_save(self) -> AbstractContextManager[None]:
        return nullcontext()

    def in_background(self, work: Work) -> "Future[Any]":
        self._free.clear()
        self._background = future = Future()

        def do() -> None:
            self._free.wait()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        if self.elsewhere:
            threading.Thread(target=do, name="background", daemon=True).start()
        else:
            self._free.set()
            do()
        return future

    def close(self) -> None:
        self._finish_background()

    def _finish_background(self) -> None:
        self._free.set()
        if self._background is not None:
            wait_until_done([self._background])


class RolloutsElsewhere:
    """For ranks whose rollouts rank 0 samples: they only help to gather weights for its engine."""

    def __init__(
        self, settings: InTurn | Ahead | InFlight, steps: int, state: TrainState, engine: Engine
    ) -> None:
        self.settings, self.steps, self.state, self.engine = settings, steps, state, engine
        self._first = state.step
        state.pending, state.open, state.complete = [], [], {}
        self.policy_updated()

    def take(self) -> Rollout:
        return Rollout([], 0)

    def policy_updated(self) -> None:
        if self._publishes():
            self.state.publish(self.engine)

    def ready_to_save(self) -> AbstractContextManager[None]:
        return nullcontext()

    def in_background(self, work: Work) -> "Future[Any]":
        if not self._publishes():
            self.state.publish(self.engine)
        return Future()

    def close(self) -> None:
        if self.settings.kind == "ahead":
            self.state.publish(self.engine)

    def _publishes(self) -> bool:
        settings, step = self.settings, self.state.step
        return settings.kind != "ahead" or settings.publishes(step, self._first, self.steps)


class RolloutsAhead:
    """Each step is sampled as soon as its weights are there, at most max_staleness ahead.

    A resumed run has in `state.pending` the steps that older weights had to sample. Where it has
    not (a finished run that gets more steps), the weights that it starts from sample them.
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
        self._new_weights: deque[tuple[int, Weights]] = deque()
        self._newest = -1
        self._busy = self._closed = False
        self._background: tuple[int, Work, Future[Any]] | None = None
        self._until: int | None = None
        """While the state is saved: the first step that is not to be sampled yet."""
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._wake = asyncio.Event()
        self.policy_updated()
        self._sampling = engine.start(self._run())

    def take(self) -> Rollout:
        with phase("generate"), self._changed:
            self._changed.wait_for(lambda: self.state.pending or self._error)
            if self._error and not self.state.pending:
                raise self._error
            return self.state.pending.pop(0)

    def policy_updated(self) -> None:
        if self._publishes():
            self._hand_weights()

    def in_background(self, work: Work) -> "Future[Any]":
        if not self._publishes():
            self._hand_weights()
        with self._notifying():
            assert self._background is None
            self._background = self.state.step, work, Future()
            return self._background[2]

    @contextmanager
    def ready_to_save(self) -> Iterator[None]:
        with self._notifying():
            begun = self._next + self._busy
            self._until = begun
        # Ranks that sample together finish what any of them has begun.
        until = self.world.max(begun)
        with self._notifying():
            self._until = until
            self._changed.wait_for(lambda: self._error or not (self._busy or self._must_sample()))
            if self._error:
                raise self._error
        try:
            yield
        finally:
            with self._notifying():
                self._until = None

    def close(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._background is None)
        with self.ready_to_save():
            self.state.publish(self.engine)
            self._closed = True
        self._sampling.result()

    def _publishes(self) -> bool:
        return self.settings.publishes(self.state.step, self._first, self.steps)

    def _hand_weights(self) -> None:
        weights = copied(self.state.weights())
        with self._notifying():
            self._new_weights.append((self.state.step, weights))
            self._newest = self.state.step

    @contextmanager
    def _notifying(self) -> Iterator[None]:
        """Change what the other thread waits for, and wake it."""
        with self._changed:
            yield
            self._changed.notify_all()
            self.engine.loop.call_soon_threadsafe(self._wake.set)

    def _version(self, step: int) -> int:
        return max(self._first, self.settings.version_for(step))

    def _must_sample(self) -> bool:
        """Whether the next step has to be sampled now: its weights are older than the present ones,
        or another rank has begun it."""
        older = self._next < self.steps and self._version(self._next) < self.state.step
        return older or (self._until is not None and self._next < self._until)

    def _may_sample(self) -> bool:
        there = self._next < self.steps and self._version(self._next) <= self._newest
        return there and (self._must_sample() or self._until is None)

    def _due_in_background(self) -> tuple[int, Work, "Future[Any]"] | None:
        """The background work, once all steps that its weights have to sample are sampled."""
        if self._background is None:
            return None
        over = self._next >= self.steps or self._version(self._next) > self._background[0]
        return self._background if over else None

    async def _run(self) -> None:
        try:
            while not self._closed:
                with self._changed:
                    background = self._due_in_background()
                    self._busy = background is None and self._may_sample()
                if background is not None:
                    await self._do_in_background(*background)
                elif self._busy:
                    await self._sample()
                else:
                    await self._wake.wait()
                    self._wake.clear()
        except BaseException as error:
            with self._notifying():
                self._error, self._busy = error, False
                if self._background is not None:
                    self._background[2].set_exception(error)

    def _load_weights(self, version: int) -> None:
        """Load the weights of this version, unless the engine has them already."""
        with self._changed:
            while self._new_weights and self._new_weights[0][0] < version:
                self._new_weights.popleft()
            waits = bool(self._new_weights) and self._new_weights[0][0] == version
            due = self._new_weights.popleft() if waits else None
        if due is not None:
            self.engine.load_weights(*due)

    async def _do_in_background(self, version: int, work: Work, future: "Future[Any]") -> None:
        self._load_weights(version)
        result = failure = None
        try:
            result = await asyncio.to_thread(work)
        except Exception as error:
            failure = error
        with self._notifying():
            self._background = None
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)

    async def _sample(self) -> None:
        self._load_weights(self._version(self._next))
        rollout = await self.collect(self._next, self._cursor)
        with self._notifying():
            self.state.pending.append(rollout)
            self._cursor += rollout.drawn
            self._next += 1
            self._busy = False


def copied(weights: Iterator[tuple[str, Tensor]]) -> Weights:
    """The weights as they are now: training goes on while they wait to be loaded."""
    return [(name, weight.clone()) for name, weight in weights]
