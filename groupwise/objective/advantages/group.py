"""GRPO's advantages, and RLOO's: reward minus a baseline, over a standard deviation."""

from typing import TYPE_CHECKING, Literal

from groupwise.objective.advantages.base import (
    EPSILON,
    AdvantageEstimator,
    GroupRewards,
    centered,
    deviation,
)

if TYPE_CHECKING:
    from torch import Tensor


class GroupAdvantage(AdvantageEstimator):
    """(reward - baseline) / deviation."""

    kind: str = "group"
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """What an answer must beat: its group's mean, or the mean of the others."""
    scale: Literal["group", "batch", "none"] = "group"
    """Which standard deviation advantages are divided by."""

    def estimate(self, rewards: GroupRewards) -> "Tensor":
        return group_advantages(rewards.total_NG, self.baseline, self.scale)

    def formula(self) -> str:
        baseline = {"mean": "mean", "leave_one_out": "mean of the others"}[self.baseline]
        return {
            "group": f"(reward − {baseline}) / (std + {EPSILON:g})",
            "batch": f"(reward − {baseline}) / (std of the whole batch + {EPSILON:g})",
            "none": f"reward − {baseline}",
        }[self.scale]


def group_advantages(
    rewards_NG: "Tensor",
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["group", "batch", "none"] = "group",
) -> "Tensor":
    """For N groups of up to G answers. NaN: no such answer."""
    above_NG = centered(rewards_NG)
    if baseline == "leave_one_out":
        count_N1 = (~rewards_NG.isnan()).sum(1, keepdim=True)
        # r - mean of the n - 1 others = n / (n - 1) (r - mean of all n)
        above_NG = above_NG * count_N1 / (count_N1 - 1).clamp(min=1)
    if scale == "group":
        above_NG = above_NG / (deviation(rewards_NG) + EPSILON)
    elif scale == "batch":
        above_NG = above_NG / (deviation(rewards_NG.reshape(1, -1)) + EPSILON)
    return above_NG
