"""Advantages of episodes: shared by the segments of one, and by turn where turns have rewards.

An episode's advantage is unit * (R - baseline): R is all that it earned, the baseline one number
for the whole episode, and unit what the estimator divides by. A turn cannot change what was earned
before it, so that part is taken off:

    A_t = unit * (R - earned before turn t - baseline) = A - unit * (earned before turn t)

What was earned before turn t is known before turn t is sampled, so that the part taken off is 0 in
expectation: the gradient stays as unbiased as it was. It has less noise where earlier rewards vary
by luck, and may have more where they do not. (Normalising the returns of each turn number by
themselves is biased: all turns become equally important, and the policy decides who reaches one.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from groupwise.errors import ConfigError
from groupwise.objective.advantages.base import AdvantageEstimator
from groupwise.objective.advantages.group import GroupAdvantage, divisor
from groupwise.types import Advantage, Completion, Group


def shared(group: Group, row: Sequence[float]) -> tuple[float, ...]:
    """An advantage for each completion: later segments of an episode have that of its first."""
    values: list[float] = []
    for completion, value in zip(group.completions, row, strict=False):
        values.append(values[-1] if completion.segment else value)
    return tuple(values)


def reward_units(estimator: AdvantageEstimator, total_NG: Tensor) -> list[float]:
    """By group, how much advantage a reward of 1 is."""
    if not isinstance(estimator, GroupAdvantage):
        raise ConfigError(
            f"environment.turn_rewards cannot work with algorithm.advantage={estimator.kind}: "
            "use algorithm.advantage=group, or leave turn_rewards out"
        )
    by = divisor(total_NG, estimator.scale)
    return (1.0 / (total_NG.new_zeros(len(total_NG), 1) + by)).flatten().tolist()


def with_turn_advantages(group: Group, unit: float) -> Group:
    """The group with an advantage for each token of its episodes; `unit` is that of a reward."""
    advantages: list[Advantage] = []
    earned: Iterator[float] = iter(())
    for completion, value in zip(group.completions, group.advantages, strict=True):
        assert isinstance(value, float)
        if completion.episode is not None:
            earned = iter(_earned_before(completion.episode.turns, completion.episode.rewards))
        elif completion.segment == 0:
            advantages.append(value)
            continue
        advantages.append(tuple(_by_token(completion, value, unit, earned)))
    return replace(group, advantages=tuple(advantages))


def _by_token(
    completion: Completion, value: float, unit: float, earned: Iterator[float]
) -> Iterator[float]:
    for sampled in completion.sampled or (True,) * len(completion.tokens):
        yield value - unit * next(earned) if sampled else value


def _earned_before(turns: Sequence[int], rewards: Sequence[float | None]) -> Iterator[float]:
    """For each sampled token of an episode, what the turns before its own had earned."""
    total = 0.0
    for number, tokens in enumerate(turns):
        yield from (total for _ in range(tokens))
        total += (rewards[number] if number < len(rewards) else None) or 0.0
