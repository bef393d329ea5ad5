"""From problems to groups of answers, and from answers to rewards."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from groupwise.config import RolloutSettings
from groupwise.distributed.world import ALONE, World
from groupwise.policy.load import Policy
from groupwise.policy.prompts import decode_all
from groupwise.rewards.base import Score, weighted
from groupwise.rewards.length import overlong_penalty
from groupwise.rewards.scorer import Scorer
from groupwise.rollout.engine import Engine
from groupwise.rollout.noise import answer_key
from groupwise.rollout.sampling import spread_temperatures
from groupwise.types import Completion, Group, Problem, Request, Sampling

Prompted = tuple[Problem, tuple[int, ...]]
"""A problem and its prompt's tokens."""


class EpisodeSampler(Protocol):
    """Samples answers as episodes with an environment (groupwise.environments)."""

    @property
    def reward_weights(self) -> Mapping[str, float]:
        """The environment's own reward and its weight; empty where it has none."""
        ...

    async def group(
        self,
        problem: Problem,
        engine: Engine,
        keys: Sequence[int],
        samplings: Sequence[Sampling],
        seed: int,
    ) -> Group:
        """One episode for each key, not yet scored."""
        ...

    def check(self, groups: Sequence[Group], world: World = ALONE) -> None:
        """Log which episodes failed; raise where all of them did, on all ranks."""
        ...


@dataclass(frozen=True)
class Rollout:
    """The scored groups of one step; of several ranks, those that this rank learns from."""

    groups: list[Group]
    drawn: int
    """Problems drawn for the step: more than there are groups when dynamic sampling replaced
    some."""
    group_indices: tuple[int, ...] = ()
    """The index of each of `groups` among all groups of the step. Empty: these are all of them."""
    group_total: int = 0
    """Groups of the whole step, where there are `group_indices`."""


@dataclass(frozen=True)
class GroupSampling:
    """What samples groups, and how: the same for all groups of a step.

    With `temperatures`, lowest and highest, the answers of a group are spread evenly over them, the
    first being the coolest, and each is a request of its own. With `episodes` each answer is one.
    """

    engine: Engine
    policy: Policy
    sampling: Sampling
    group_size: int
    seed: int
    temperatures: tuple[float, float] | None = None
    episodes: EpisodeSampler | None = None

    def samplings(self) -> list[Sampling]:
        """The sampling settings of each answer."""
        if self.temperatures is None:
            return [self.sampling] * self.group_size
        spread = spread_temperatures(self.group_size, *self.temperatures)
        return [replace(self.sampling, temperature=temperature) for temperature in spread]

    def requests(
        self, tokens: tuple[int, ...], keys: tuple[int, ...]
    ) -> list[tuple[Request, Sampling]]:
        """One request for all answers; at several temperatures, one for each."""
        if self.temperatures is None:
            return [(Request(tokens, keys), self.sampling)]
        pairs = zip(keys, self.samplings(), strict=True)
        return [(Request(tokens, (key,)), sampling) for key, sampling in pairs]


async def sample_group(prompted: Prompted, step: int | str, how: GroupSampling) -> Group:
    """`how.group_size` answers to one problem, decoded and not yet scored."""
    problem, tokens = prompted
    keys = tuple(_key(how.seed, step, problem, index) for index in range(how.group_size))
    if how.episodes is not None:
        # Episodes of a group share the environment's seed.
        shared = _key(how.seed, step, problem, -1)
        return await how.episodes.group(problem, how.engine, keys, how.samplings(), shared)
    requests = how.requests(tokens, keys)
    answered = await asyncio.gather(*(how.engine.sample(*request) for request in requests))
    completions = [completion for completions in answered for completion in completions]
    if how.temperatures is not None:
        pairs = zip(completions, how.samplings(), strict=True)
        completions = [replace(c, temperature=sampling.temperature) for c, sampling in pairs]
    rows = [completion.tokens for completion in completions]
    texts = decode_all(rows, how.policy.tokenizer, how.policy.eos_ids)
    answers = zip(completions, texts, strict=True)
    return Group(problem, tokens, tuple(replace(c, text=problem.prefill + t) for c, t in answers))


def _key(seed: int, step: int | str, problem: Problem, index: int) -> int:
    again = (problem.occurrence,) if problem.occurrence else ()
    return answer_key(seed, step, problem.id, index, *again)


def score_groups(
    groups: Sequence[Group],
    scorer: Scorer,
    rollout: RolloutSettings,
    episodes: EpisodeSampler | None = None,
) -> list[Group]:
    """Every reward on every answer, and their weighted sum; the soft length penalty is one more."""
    scores = scores_of(groups, scorer, episodes)
    if rollout.overlong_buffer:
        limit, buffer = rollout.max_completion_tokens, rollout.overlong_buffer
        scores["overlong"] = [
            overlong_penalty(c.length, limit, buffer) if c.scored else None
            for group in groups
            for c in group.completions
        ]
    totals = weighted(scores, reward_weights(scorer, rollout, episodes))
    scored, start = [], 0
    for group in groups:
        part = slice(start, start := start + len(group.completions))
        parts = {name: tuple(values[part]) for name, values in scores.items()}
        scored.append(replace(group, scores=parts, rewards=tuple(totals[part])))
    return scored


def scores_of(
    groups: Sequence[Group], scorer: Scorer, episodes: EpisodeSampler | None = None
) -> dict[str, list[Score]]:
    """Every reward on every answer, flat; None where rewards do not apply."""
    flat = [(group.problem, c) for group in groups for c in group.completions]
    ids = scorer.wants_ids
    judged = [(_with_columns(problem, c, ids), c.text) for problem, c in flat if c.scored]
    known = scorer.score([problem for problem, _ in judged], [text for _, text in judged])
    scores: dict[str, list[Score]] = {}
    for name, values in known.items():
        following = iter(values)
        scores[name] = [next(following) if c.scored else None for _, c in flat]
    for name in episodes.reward_weights if episodes is not None else ():
        scores[name] = [c.episode.reward if c.episode else None for _, c in flat]
    return scores


def _with_columns(problem: Problem, completion: Completion, ids: bool) -> Problem:
    """With columns for the episode, and for the answer's tokens where a reward asks for them."""
    own: dict[str, Any] = {"completion_ids": list(completion.tokens)} if ids else {}
    if completion.episode is not None:
        episode = asdict(completion.episode) | {"stop": completion.stop}
        own["episode"] = episode | {"messages": list(episode["messages"])}
    return replace(problem, columns={**problem.columns, **own}) if own else problem


def reward_weights(
    scorer: Scorer, rollout: RolloutSettings, episodes: EpisodeSampler | None = None
) -> dict[str, float]:
    weights = {reward.name: reward.weight for reward in scorer.rewards}
    weights |= episodes.reward_weights if episodes is not None else {}
    return weights | ({"overlong": 1.0} if rollout.overlong_buffer else {})
