"""GDPO's advantages: every reward on the same scale before they are summed."""

import math
from typing import ClassVar

from groupwise.objective.advantages.base import (
    AdvantageEstimator,
    GroupRewards,
    Tensor,
    standardized,
)


class Gdpo(AdvantageEstimator):
    """Z-score each reward within its group, sum by weight, whiten over the batch.

    So a reward with a small spread is not drowned by one with a large spread. The KL penalty is
    taken off the sum before whitening.
    """

    kind: str = "gdpo"
    uses_weights: ClassVar[bool] = True

    def estimate(self, rewards: GroupRewards) -> Tensor:
        total_NG = rewards.total_NG.new_zeros(rewards.total_NG.shape) - rewards.penalty_NG
        scored_NG = total_NG.isnan()
        for name, weight in rewards.weights.items():
            if weight != 0:
                total_NG = total_NG + weight * standardized(rewards.scores_NG[name])
                scored_NG = scored_NG | ~rewards.scores_NG[name].isnan()
        total_1K = total_NG.masked_fill(~scored_NG, math.nan).reshape(1, -1)
        return standardized(total_1K).view_as(total_NG)

    def formula(self) -> str:
        return "each reward's z-score within the group, summed by weight, whitened over the batch"
