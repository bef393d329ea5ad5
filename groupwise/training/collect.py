"""A rollout: N groups of answers with their rewards; with dynamic sampling, groups that differ.

Each group is sampled by a task of its own. Groups whose answers are all there are scored while the
others are still being sampled. Groups whose answers all got the same reward are replaced in rounds:
which answers are in a batch together changes the last digits of their log-probs, so that must not
depend on which reward was there first. (In flight, where that cannot be had, they are replaced at
once.)
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from groupwise.load import Parts
from groupwise.rollout.engine import run_sync
from groupwise.rollout.groups import Prompted, Rollout, sample_group, score_groups
from groupwise.tracking.activity import Progress
from groupwise.training.clock import spent
from groupwise.training.sampler import draw
from groupwise.training.state import TrainState
from groupwise.types import Group


def collect(parts: Parts, state: TrainState) -> Rollout:
    """The groups of the step that comes next, by the policy's present weights."""
    state.publish(parts.engine)
    return run_sync(collect_step(parts, state.step, state.cursor))


async def collect_step(parts: Parts, step: int, cursor: int) -> Rollout:
    """The groups of one step, with problems from `cursor` on.

    With `rollout.max_draws` above 1, groups whose rewards are all equal are replaced by fresh ones
    as long as the budget of `max_draws * prompts` problems lasts; when it runs out, the newest of
    them fill the batch. So what is drawn is the shortest run of problems with enough useful groups.
    Ranks that sample together take turns over the problems, and agree on replacements.
    """
    prompts, world = parts.config.batch.prompts, parts.world
    budget = max(int(parts.config.rollout.max_draws * prompts), prompts)
    problems, how = next_problems(parts, cursor), parts.group_sampling
    progress = Progress("sampling")
    groups: dict[int, Group] = {}
    tasks: dict[int, asyncio.Task[Group]] = {}
    drawn = flat = 0
    try:
        while wanted := min(prompts + flat, budget) - drawn:
            tasks = {
                index: asyncio.create_task(sample_group(prompted, step, how))
                for index, prompted in zip(range(drawn, drawn + wanted), problems, strict=False)
                if index % world.size == world.rank
            }
            drawn += wanted
            progress.add(tasks.values())
            groups |= await scored_while_sampled(parts, tasks)
            if budget > prompts:
                flat = sum(world.gather(sum(not group.has_spread for group in groups.values())))
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        spent("generate", progress.last_done - progress.began)
        spent("reward", time.perf_counter() - progress.last_done)  # what no sampling hid
    if parts.episodes is not None:
        parts.episodes.check(list(groups.values()), world)
    spread = [(index, group.has_spread) for index, group in groups.items()]
    chosen = _chosen([pair for part in world.gather(spread) for pair in part], prompts)
    if world.size == 1:
        return Rollout([groups[n] for n in chosen], drawn)
    indices = tuple(index for index, n in enumerate(chosen) if n in groups)
    return Rollout([groups[chosen[index]] for index in indices], drawn, indices, len(chosen))


async def scored_while_sampled(
    parts: Parts, tasks: Mapping[int, "asyncio.Task[Group]"]
) -> dict[int, Group]:
    """The groups that these tasks sample, with rewards. One call scores all that wait for it."""
    scored: dict[int, Group] = {}
    while waiting := {index: task for index, task in tasks.items() if index not in scored}:
        await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
        sampled = {index: task.result() for index, task in waiting.items() if task.done()}
        settings = parts.scorer, parts.config.rollout, parts.episodes
        groups = await asyncio.to_thread(score_groups, list(sampled.values()), *settings)
        scored |= zip(sampled, groups, strict=True)
    return dict(sorted(scored.items()))


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
