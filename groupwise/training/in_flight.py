"""Rollouts in flight: answers grow while the policy is updated, and weights change under them.

Groups are sampled in the order of their problems, a bounded number at once, and a step takes the
first that are complete. The answers depend on timing. What does not: each problem is learned from
exactly once (or replaced, by dynamic sampling), however often a run is killed and resumed.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_until_done
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from groupwise.config import InFlight
from groupwise.distributed.world import World
from groupwise.load import Parts
from groupwise.rollout.batching import Batched
from groupwise.rollout.engine_thread import EngineThread
from groupwise.rollout.groups import Rollout, sample_group
from groupwise.training.clock import phase
from groupwise.training.sampler import draw
from groupwise.training.state import TrainState
from groupwise.types import Completion, Group


@dataclass
class GroupInFlight:
    """A group that is being sampled, with weights of this version or later ones."""

    task: "asyncio.Task[None]"
    version: int


class RolloutsInFlight:
    """`state.open` are the problems, by position, that are being sampled; `state.complete` the
    groups that wait to be learned from."""

    def __init__(
        self,
        settings: InFlight,
        parts: Parts,
        state: TrainState,
        engine: EngineThread,
        world: World,
    ) -> None:
        self.settings, self.parts, self.state, self.engine = settings, parts, state, engine
        self.world, config = world, parts.config
        # Each rank that samples has every `size`-th problem, and so its share of a step. Ranks
        # beyond the number of problems in a step have none.
        self._rank, self._size = world.rank, min(world.size, config.batch.prompts)
        share = slice(world.rank, None, self._size) if world.rank < self._size else slice(0)
        self._prompts = len(range(config.batch.prompts)[share])
        draws = max(int(config.rollout.max_draws * config.batch.prompts), config.batch.prompts)
        self._budget = len(range(draws)[share])
        self._max_groups = max(self._prompts * (settings.max_staleness + 1), self._budget)
        """The most groups that are being sampled or are complete: so a complete one does not wait
        longer than the bound on staleness allows."""
        self._complete = {p: g for p, g in state.complete.items() if self._is_own(p)}
        self._to_sample_again = sorted(p for p in state.open if self._is_own(p))
        self._next = state.cursor + (world.rank - state.cursor) % self._size
        self._running: dict[int, GroupInFlight] = {}
        self._scoring: Batched[None, Group, Group] = Batched(self._score)
        self._new_weights: tuple[int, list[tuple[str, Tensor]]] | None = None
        self._version = -1
        self._background: Future[Any] | None = None
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.policy_updated()

    def take(self) -> Rollout:
        if self.state.pending:
            return self.state.pending.pop(0)
        with phase("generate"), self._changed:
            self._changed.wait_for(lambda: self._error or not self._prompts or self._due()[0])
            if self._error:
                raise self._error
            due, replaced = self._due()
            usable = {position: self._usable(self._complete.pop(position)) for position in due}
            for position in replaced:
                del self._complete[position]
            self.engine.loop.call_soon_threadsafe(self._fill)
        groups = {position: group for position, group in usable.items() if group is not None}
        if self.parts.episodes is not None:
            self.parts.episodes.check(list(groups.values()), self.world)
        return self._placed(groups, len(due) + len(replaced))

    def _placed(self, groups: dict[int, Group], drawn: int) -> Rollout:
        """The groups of this rank, with their indices among the groups of all ranks."""
        if self.world.size == 1:
            return Rollout(list(groups.values()), drawn)
        positions, counts = zip(*self.world.gather([list(groups), drawn]), strict=True)
        order = sorted(position for part in positions for position in part)
        indices = tuple(order.index(position) for position in groups)
        return Rollout(list(groups.values()), sum(counts), indices, len(order))

    def policy_updated(self) -> None:
        weights = [(name, weight.clone()) for name, weight in self.state.weights()]
        with self._changed:
            self._new_weights = self.state.step, weights
        self.engine.loop.call_soon_threadsafe(self._load)

    @contextmanager
    def ready_to_save(self) -> Iterator[None]:
        """Nothing is waited for: groups that are not complete are sampled again after a resume."""
        self._write_state()
        yield

    def in_background(self, work: Callable[[], Any]) -> "Future[Any]":
        """Groups are sampled meanwhile, with the present weights until the work is done."""
        self._wait_for_weights()
        self._background = future = self.engine.start(asyncio.to_thread(work))
        loop = self.engine.loop
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._load))
        return future

    def close(self) -> None:
        if self._background is not None:
            wait_until_done([self._background])
        self._wait_for_weights()
        with self._changed:
            self._closed = True
        self._write_state()
        for running in list(self._running.values()):
            self.engine.loop.call_soon_threadsafe(running.task.cancel)

    def _wait_for_weights(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error or self._version >= self.state.step)
            if self._error:
                raise self._error

    def _write_state(self) -> None:
        state = self.state
        with self._changed:
            state.complete = dict(self._complete)
            own = self._next, [*self._to_sample_again, *self._running]
        ends, opened = zip(*self.world.gather(own)[: self._size], strict=True)
        state.cursor = max(ends)
        # Also what slower ranks have not begun: the run may be resumed by another number of ranks.
        behind = [p for r, end in enumerate(ends) for p in range(end, state.cursor, len(ends))]
        state.open = sorted({*behind, *(position for part in opened for position in part)})

    def _is_own(self, position: int) -> bool:
        return position % self._size == self._rank

    def _due(self) -> tuple[list[int], list[int]]:
        """Positions of the complete groups that the step learns from, oldest first, and of those
        without spread that they replace; none while too few are complete."""
        for position in sorted(self._complete):
            if self._usable(self._complete[position]) is None:
                del self._complete[position]
                self._to_sample_again.append(position)
                self.engine.loop.call_soon_threadsafe(self._fill)
        complete = sorted(self._complete)[: self._budget]
        keeps_flat = self._budget == self._prompts
        useful = [p for p in complete if keeps_flat or self._complete[p].has_spread]
        flat = [p for p in complete if p not in useful]
        if len(useful) >= self._prompts > 0:
            due = useful[: self._prompts]
            return due, [p for p in flat if p < due[-1]]
        if len(complete) < self._budget:
            return [], []
        first = len(flat) - (self._prompts - len(useful))
        return useful + flat[first:], flat[:first]

    def _usable(self, group: Group) -> Group | None:
        """The group without tokens that are too old; None where it has to be sampled again."""
        oldest = self.state.step - self.settings.max_staleness
        answers = [recent_tokens(completion, oldest) for completion in group.completions]
        if any(answer is None for answer in answers):
            return None
        kept = tuple(answer for answer in answers if answer is not None)
        if self.settings.unfinished == "drop" and kept != group.completions:
            return None
        return replace(group, completions=kept)

    # What follows runs on the engine's loop.

    def _load(self) -> None:
        if self._background is not None and not self._background.done():
            return
        with self._changed:
            handed, self._new_weights = self._new_weights, None
        if handed is None or self._closed:
            return
        try:
            self.engine.load_weights(*handed)
        except BaseException as error:
            self._fail(error)
            return
        with self._changed:
            self._version = handed[0]
            self._changed.notify_all()
            if self.settings.unfinished == "drop":
                for position, running in list(self._running.items()):
                    if self._version - running.version > self.settings.max_staleness:
                        running.task.cancel()
                        self._to_sample_again.append(position)
                        del self._running[position]
        self._fill()

    def _fill(self) -> None:
        """Start groups up to the limit. None while the engine's weights are too old already, as
        during a long evaluation."""
        with self._changed:
            while (
                not self._closed
                and self.state.step - self._version <= self.settings.max_staleness
                and len(self._complete) + len(self._running) < self._max_groups
            ):
                if self._to_sample_again:
                    position = self._to_sample_again.pop(0)
                else:
                    position, self._next = self._next, self._next + self._size
                task = self.engine.loop.create_task(self._sample(position))
                self._running[position] = GroupInFlight(task, self._version)

    async def _sample(self, position: int) -> None:
        train, seed = self.parts.problems["train"], self.parts.config.seed
        (prompted,) = draw(train, position, 1, seed)
        try:
            how = self.parts.group_sampling
            sampled = await sample_group(prompted, f"problem {position}", how)
            group = await self._scoring.add(None, sampled)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fail(error)
            return
        with self._changed:
            if self._closed:
                return
            del self._running[position]
            self._complete[position] = group
            self._changed.notify_all()
        self._fill()

    async def _score(self, _: None, groups: list[Group]) -> list[Group]:
        return await asyncio.to_thread(self.parts.score, groups)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()


def recent_tokens(completion: Completion, oldest: int) -> Completion | None:
    """The answer, with tokens drawn by weights before version `oldest` masked out.

    None where no token is left. Masked tokens stay as the context of the later ones. An episode
    whose environment failed at once has no tokens, so none that could be too old.
    """
    if completion.version >= oldest or not completion.tokens:
        return completion
    first = next((index for index, version in completion.versions if version >= oldest), None)
    if first is None:
        return None
    drawn = completion.sampled or (True,) * len(completion.tokens)
    return replace(completion, sampled=(False,) * first + drawn[first:])
