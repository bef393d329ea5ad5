"""Advantage estimators: one file each. A new file with a derived class is all it takes."""

from typing import TYPE_CHECKING

from groupwise.objective.advantages.base import AdvantageEstimator, GroupRewards
from groupwise.objective.choice import known, one_of

ADVANTAGES = known(AdvantageEstimator, __name__)

if TYPE_CHECKING:
    AnyAdvantage = AdvantageEstimator
else:
    AnyAdvantage = one_of(AdvantageEstimator, "advantage", ADVANTAGES)

__all__ = ["ADVANTAGES", "AdvantageEstimator", "AnyAdvantage", "GroupRewards"]
