"""A rollout: N groups of answers with their rewards; with dynamic sampling, groups that differ.

What is drawn depends on the data position and the step alone. Each rank samples and scores the
answers to its share of the problems, and all ranks get all groups.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from groupwise.load import Parts
from groupwise.rollout.collect import (
    Prompted,
    Rollout,
    gather_groups,
    own_problems,
    sample_groups,
    score_groups,
)
from groupwise.training.clock import phase
from groupwise.training.sampler import draw
from groupwise.training.state import TrainState
from groupwise.types import Group, Problem


def collect(parts: Parts, state: TrainState) -> Rollout:
    """The groups of the step that comes next."""
    return collect_step(parts, state.step, state.cursor)


def collect_step(parts: Parts, step: int, cursor: int) -> Rollout:
    """The groups of one step, with problems from `cursor` on.

    With `rollout.max_draws` above 1, groups whose rewards are all equal are replaced by fresh ones
    as long as the budget of `max_draws * prompts` problems lasts; when it runs out, the newest of
    them fill the batch.
    """
    config = parts.config
    prompts, budget = config.batch.prompts, config.batch.prompts
    if config.rollout.max_draws > 1:
        budget = int(config.rollout.max_draws * prompts)
    useful: list[Group] = []
    flat: list[Group] = []
    drawn, times_drawn = 0, Counter[str]()
    while len(useful) < prompts and drawn < budget:
        wanted = min(prompts - len(useful), budget - drawn)
        fresh = draw(parts.problems["train"], cursor + drawn, wanted, config.seed)
        problems = [(_counted(problem, times_drawn), tokens) for problem, tokens in fresh]
        drawn += wanted
        own = own_problems(parts.world, problems)
        sampled = _sampled(parts, own, step) if own else []
        groups = gather_groups(parts.world, sampled, problems)
        if budget == prompts:
            return Rollout(groups, drawn)
        useful += [group for group in groups if group.has_spread]
        flat += [group for group in groups if not group.has_spread]
    return Rollout(useful + flat[len(flat) - (prompts - len(useful)) :], drawn)


def _counted(problem: Problem, times_drawn: Counter[str]) -> Problem:
    """A problem that a step draws again is marked as such: it gets other answers each time."""
    times_drawn[problem.id] += 1
    return replace(problem, occurrence=times_drawn[problem.id] - 1)


def _sampled(parts: Parts, problems: Sequence[Prompted], step: int) -> list[Group]:
    config = parts.config
    with phase("generate"):
        groups = sample_groups(
            problems,
            parts.engine,
            parts.policy,
            config.rollout.sampling,
            group_size=config.batch.group_size,
            seed=config.seed,
            step=step,
            temperatures=config.rollout.temperature_spread,
        )
    with phase("reward"):
        return score_groups(groups, parts.scorer, config.rollout)
