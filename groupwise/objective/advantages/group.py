"""GRPO's advantages, and RLOO's: reward minus a baseline, over a standard deviation."""

from typing import Literal

from groupwise.objective.advantages.base import (
    EPSILON,
    AdvantageEstimator,
    GroupRewards,
    Tensor,
    centered,
    deviation,
)


class GroupAdvantage(AdvantageEstimator):
    """(reward - baseline) / deviation."""

    kind: str = "group"
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What an answer must beat: its group's mean, or the mean of the others."""
    scale: Literal["group", "batch", "none"] = "group"
    """Which standard deviation advantages are divided by."""

    def estimate(self, rewards: GroupRewards) -> Tensor:
        rewards_NG = rewards.total_NG
        above_NG = centered(rewards_NG)
        if self.baseline == "leave_one_out":
            count_N1 = (~rewards_NG.isnan()).sum(1, keepdim=True)
            # r - mean of the n - 1 others = n / (n - 1) (r - mean of all n)
            above_NG = above_NG * count_N1 / (count_N1 - 1).clamp(min=1)
        return above_NG / divisor(rewards_NG, self.scale)

    def formula(self) -> str:
        baseline = {"mean": "mean", "leave_one_out": "mean of the others"}[self.baseline]
        if self.scale == "none":
            return f"reward − {baseline}"
        std = {"group": "std", "batch": "std of the whole batch"}[self.scale]
        return f"(reward − {baseline}) / ({std} + {EPSILON:g})"


def divisor(rewards_NG: Tensor, scale: Literal["group", "batch", "none"]) -> Tensor | float:
    """What a difference of rewards is divided by to become one of advantages."""
    if scale == "none":
        return 1.0
    compared = rewards_NG if scale == "group" else rewards_NG.reshape(1, -1)
    return deviation(compared) + EPSILON
