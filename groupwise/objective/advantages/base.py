"""What an advantage estimator is: how much better an answer is than the others of its group.

    class ByRank(AdvantageEstimator):
        kind: str = "rank"

        def estimate(self, rewards: GroupRewards) -> Tensor:
            return rewards.total_NG.argsort(1).argsort(1) ...

A missing reward (None, here NaN) is left out of every mean and deviation, and its answer gets 0. So
does an answer without any other to compare with, and exactly 0 goes to groups whose rewards are all
equal.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from groupwise.choice import Choice
from groupwise.extensions import extension

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any  # reading a recipe does not import torch: estimators call tensors' own methods

EPSILON = 1e-4
"""Added to deviations, so that tiny ones do not explode."""


@dataclass(frozen=True)
class GroupRewards:
    """The rewards of the N groups of a whole step, of up to G answers each. NaN: no such reward."""

    total_NG: Tensor
    """Weighted sums, less what `kl_in: reward` takes off."""
    scores_NG: Mapping[str, Tensor]
    """What each reward gave."""
    weights: Mapping[str, float]
    """The rewards' weights; those of weight 0 are metrics."""
    penalty_NG: Tensor | float = 0.0
    """What `kl_in: reward` takes off, already in the total."""


@extension("advantage")
class AdvantageEstimator(Choice):
    """One number for every answer, from the rewards of its group."""

    uses_weights: ClassVar[bool] = False
    """Whether it looks at single rewards and their weights, and not at their sum alone."""

    def estimate(self, rewards: GroupRewards) -> Tensor:
        """(N, G), 0 where the total is NaN."""
        raise TypeError(f"{type(self).__name__} must define estimate(self, rewards)")

    def formula(self) -> str:
        """The rule as `groupwise explain` prints it."""
        return self.kind


def centered(rewards_NG: Tensor) -> Tensor:
    """Rewards minus their row's mean; 0 where unknown."""
    unknown_NG = rewards_NG.isnan()
    # Measured from the row's least, equal rewards come out as 0 exactly, not as rounding noise that
    # a division by a deviation of nearly 0 would blow up.
    least_N1 = rewards_NG.masked_fill(unknown_NG, math.inf).amin(1, keepdim=True)
    from_least_NG = rewards_NG - least_N1
    return (from_least_NG - from_least_NG.nanmean(1, keepdim=True)).masked_fill(unknown_NG, 0.0)


def deviation(rewards_NG: Tensor) -> Tensor:
    """The sample standard deviation (n - 1) of each row's known rewards, (N, 1); 0 for n < 2."""
    freedom_N1 = (~rewards_NG.isnan()).sum(1, keepdim=True) - 1
    squares_N1 = centered(rewards_NG).square().sum(1, keepdim=True)
    return (squares_N1 / freedom_N1.clamp(min=1)).sqrt()


def standardized(rewards_NG: Tensor) -> Tensor:
    """Z-scores within each row; 0 where unknown."""
    return centered(rewards_NG) / (deviation(rewards_NG) + EPSILON)
