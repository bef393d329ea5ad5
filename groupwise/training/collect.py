"""A rollout: N groups of answers with their rewards; with dynamic sampling, groups that differ.

A group is a coroutine (its answers are sampled, then scored) and a step a gather of groups. Rewards
are scored while other answers are sampled. Groups that turn out flat are replaced in rounds: which
answers are in a batch together changes the last digits of their log-probs, so that must not depend
on which reward was there first. (In flight, where that cannot be had, they are replaced at once.)
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from groupwise.load import Parts
from groupwise.rollout.batching import Batched
from groupwise.rollout.engine import wait_for
from groupwise.rollout.groups import Prompted, Rollout, sample_group, score_groups
from groupwise.tracking.activity import doing
from groupwise.training.clock import spent
from groupwise.training.sampler import draw
from groupwise.training.state import TrainState
from groupwise.types import Group


def collect(parts: Parts, state: TrainState) -> Rollout:
    """The groups of the step that comes next, by the policy's present weights."""
    state.publish(parts.engine)
    return wait_for(collect_step(parts, state.step, state.cursor))


async def collect_step(parts: Parts, step: int, cursor: int) -> Rollout:
    """The groups of one step, with problems from `cursor` on.

    With `rollout.max_draws` above 1, groups whose rewards are all equal are replaced by fresh ones
    as long as the budget of `max_draws * prompts` problems lasts; when it runs out, the newest of
    them fill the batch. So what is drawn is the shortest run of problems with enough useful groups.
    Ranks that sample together take turns over the problems, and agree on replacements.
    """
    prompts, world = parts.config.batch.prompts, parts.world
    budget = max(int(parts.config.rollout.max_draws * prompts), prompts)
    problems, answering = next_problems(parts, cursor), Answering(parts)
    groups: dict[int, Group] = {}
    running: list[asyncio.Task[tuple[int, Group]]] = []
    drawn = flat = 0
    try:
        while wanted := min(prompts + flat, budget) - drawn:
            running = [
                asyncio.create_task(answering.group(place, prompted, step))
                for place, prompted in zip(range(drawn, drawn + wanted), problems, strict=False)
                if place % world.size == world.rank
            ]
            drawn += wanted
            answering.expect(len(running))
            groups |= dict(await asyncio.gather(*running))
            if budget > prompts:
                flat = sum(world.gather(sum(not group.has_spread for group in groups.values())))
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await answering.cancel()
        answering.log_seconds()
    if parts.episodes is not None:
        parts.episodes.check(list(groups.values()), world)
    spread = [(place, group.has_spread) for place, group in groups.items()]
    chosen = _chosen([pair for part in world.gather(spread) for pair in part], prompts)
    if world.size == 1:
        return Rollout([groups[n] for n in chosen], drawn)
    places = tuple(place for place, n in enumerate(chosen) if n in groups)
    return Rollout([groups[chosen[place]] for place in places], drawn, places, len(chosen))


def _chosen(spread: list[tuple[int, bool]], prompts: int) -> list[int]:
    """Useful groups in the order of their problems, then the newest of those without spread."""
    if len(spread) == prompts:
        return sorted(n for n, _ in spread)
    useful = sorted(n for n, has_spread in spread if has_spread)
    flat = sorted(n for n, has_spread in spread if not has_spread)
    return useful + flat[len(flat) - (prompts - len(useful)) :]


def next_problems(parts: Parts, cursor: int) -> Iterator[Prompted]:
    """From `cursor` on. A problem that a step draws again is marked: it gets other answers."""
    times_drawn = Counter[str]()
    while True:
        ((problem, tokens),) = draw(parts.problems["train"], cursor, 1, parts.config.seed)
        yield replace(problem, occurrence=times_drawn[problem.id]), tokens
        times_drawn[problem.id] += 1
        cursor += 1


@dataclass
class Answering:
    """Groups that are sampled and scored side by side. Those that wait are scored in one call."""

    parts: Parts
    began: float = field(default_factory=time.perf_counter)
    last_sampled: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._scoring: Batched[None, Group, Group] = Batched(self._score)
        self._sampled = self._expected = 0

    def expect(self, groups: int) -> None:
        """So many more are to be sampled: progress is told."""
        self._expected += groups
        doing("sampling", self._sampled, self._expected)

    async def group(self, place: int, prompted: Prompted, step: int | str) -> tuple[int, Group]:
        config = self.parts.config
        group = await sample_group(
            prompted,
            self.parts.engine,
            self.parts.policy,
            config.rollout.sampling,
            group_size=config.batch.group_size,
            seed=config.seed,
            step=step,
            temperatures=config.rollout.temperature_spread,
            episodes=self.parts.episodes,
        )
        self.last_sampled = time.perf_counter()
        self._sampled += 1
        if self._expected:
            doing("sampling", self._sampled, self._expected)
        return place, await self._scoring.add(None, group)

    async def _score(self, _: None, groups: list[Group]) -> list[Group]:
        parts = self.parts
        scoring = score_groups, groups, parts.scorer, parts.config.rollout, parts.episodes
        return await asyncio.to_thread(*scoring)

    async def cancel(self) -> None:
        """Groups that came after one that failed are not scored."""
        await self._scoring.cancel()

    def log_seconds(self) -> None:
        """Until the last answer was sampled, and what scoring took beyond that."""
        spent("generate", self.last_sampled - self.began)
        spent("reward", time.perf_counter() - self.last_sampled)
