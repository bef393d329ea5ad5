"""All that must survive a crash. A checkpoint holds exactly this."""

from dataclasses import dataclass, field
from typing import Any

from groupwise.policy.load import Policy
from groupwise.policy.reference import KLReference
from groupwise.train.optim import Optimizer
from groupwise.types import Group, group_from_json, to_json


@dataclass
class TrainState:
    """Weights and moments, and a few numbers. Randomness is keyed by step, so no generator is here.

    `cursor` counts problems drawn. `pending` holds groups that were sampled and not yet learned
    from when the run was stopped, with the number of problems drawn for them.
    """

    policy: Policy
    optimizer: Optimizer
    reference: KLReference | None
    step: int = 0
    cursor: int = 0
    seconds: float = 0.0
    entropy: float | None = None
    entropy_weight: float = 0.0
    best: float | None = None
    before: dict[str, float] = field(default_factory=dict)
    pending: list[Group] = field(default_factory=list)
    pending_drawn: int = 0

    def numbers(self) -> dict[str, Any]:
        """The part that is not tensors, as JSON values."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "pending": [to_json(group) for group in self.pending],
        }

    def load_numbers(self, data: dict[str, Any]) -> None:
        for name in _NUMBERS:
            setattr(self, name, data[name])
        self.pending = [group_from_json(group) for group in data["pending"]]


_NUMBERS = (
    "step",
    "cursor",
    "seconds",
    "entropy",
    "entropy_weight",
    "best",
    "before",
    "pending_drawn",
)
