"""All that must survive a crash. A checkpoint holds exactly this."""

from dataclasses import dataclass, field
from typing import Any

from groupwise.policy.load import Policy
from groupwise.policy.reference import KLReference
from groupwise.rollout.collect import Rollout
from groupwise.training.memory_fit import TokenBudget
from groupwise.training.optim import Stepper
from groupwise.types import group_from_json, to_json


@dataclass
class TrainState:
    """Weights and moments, and a few numbers. Randomness is keyed by step, so no generator is here.

    `policy` is what answers, is saved and, as a rule, learns. Where ranks hold a model together,
    `shards` is this rank's part of it, which learns, and `policy` a whole copy that follows. (Of
    DeepSpeed's lower stages, which part only what belongs to the optimizer, both are one model.)
    `cursor` counts the problems drawn for the steps learned from. `pending` holds what was sampled
    for the next steps, in their order, and not yet learned from.
    """

    policy: Policy
    optimizer: Stepper
    reference: KLReference | None
    shards: Policy | None = None
    step: int = 0
    cursor: int = 0
    seconds: float = 0.0
    entropy: float | None = None
    entropy_weight: float = 0.0
    best: float | None = None
    before: dict[str, float] = field(default_factory=dict)
    pending: list[Rollout] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """The run's config as plain values: should config.yaml be lost, a checkpoint still has it."""
    budget: TokenBudget = field(default_factory=TokenBudget)
    """Tokens that go through the model at once; not part of a checkpoint."""

    @property
    def learner(self) -> Policy:
        return self.shards or self.policy

    def numbers(self) -> dict[str, Any]:
        """The part that is not tensors, as JSON values."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "pending": [
                {"drawn": step.drawn, "groups": [to_json(group) for group in step.groups]}
                for step in self.pending
            ],
            "settings": self.settings,
        }

    def load_numbers(self, data: dict[str, Any]) -> None:
        for name in _NUMBERS:
            setattr(self, name, data[name])
        self.pending = [
            Rollout([group_from_json(group) for group in step["groups"]], step["drawn"])
            for step in data["pending"]
        ]


_NUMBERS = (
    "step",
    "cursor",
    "seconds",
    "entropy",
    "entropy_weight",
    "best",
    "before",
)
