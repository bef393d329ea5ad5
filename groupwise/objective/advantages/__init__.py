"""Advantage estimators: one file each. A new file with a derived class is all it takes."""

from groupwise.choice import classes_in
from groupwise.objective.advantages.base import AdvantageEstimator, GroupRewards

ADVANTAGES = classes_in(__name__, AdvantageEstimator)

__all__ = ["ADVANTAGES", "AdvantageEstimator", "GroupRewards"]
