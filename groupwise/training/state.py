"""The training state: everything that must survive a crash, and so what a checkpoint holds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from groupwise.policy.load import Policy
from groupwise.policy.reference import KLReference
from groupwise.policy.weights import trained_weights
from groupwise.rollout.engine import Engine
from groupwise.rollout.groups import Rollout
from groupwise.training.exchange import Exchange
from groupwise.training.memory_fit import TokenBudget
from groupwise.training.optim import TrainingOptimizer
from groupwise.types import Group, group_from_json, to_json


@dataclass
class TrainState:
    """Weights, moments and a few numbers. Randomness is keyed by step: there is no generator state.

    `policy` samples, is saved and usually learns. Where a model is sharded over ranks, `shards` is
    this rank's part, which learns; `policy` is then a full copy that gets the updated weights, or,
    where other processes sample, a model without weights (on the meta device). With DeepSpeed's
    stages 0 to 2, which shard only optimizer state, both are the same model.

    `cursor` counts the problems drawn for the steps learned from. `pending` are rollouts of the
    next steps, in order, that are sampled and not learned from. In flight, `cursor` counts all
    problems drawn; `open` are the positions of problems that are still to be sampled, `complete`
    the groups that wait to be learned from, by position. `held` are lines of metrics.jsonl that
    wait for an evaluation; in a checkpoint that is the line of its own step.
    """

    policy: Policy
    optimizer: TrainingOptimizer
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
    open: list[int] = field(default_factory=list)
    complete: dict[int, Group] = field(default_factory=dict)
    held: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """The run's config as plain values: should config.yaml be lost, a checkpoint still has it."""
    exchange: Exchange | None = None
    """Sends groups between ranks; not part of a checkpoint."""
    budget: TokenBudget = field(default_factory=TokenBudget)
    """How many tokens go through the model at once; not part of a checkpoint."""

    @property
    def learner(self) -> Policy:
        return self.shards or self.policy

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights for an engine, one tensor at a time. Where no rank has the whole model, this
        is a collective: all ranks iterate together."""
        if self.is_whole:
            yield from trained_weights(self.policy).items()
        else:
            yield from self.optimizer.full_weights()

    def publish(self, engine: Engine) -> None:
        """Load the present weights into the engine."""
        weights = self.weights()
        engine.load_weights(self.step, weights)
        for _ in weights:  # an engine that has them already reads none, and other ranks iterate
            pass

    @property
    def is_whole(self) -> bool:
        """Whether `policy` has its weights; else only the shards have them."""
        return not any(weight.is_meta for weight in self.policy.model.parameters())

    def numbers(self) -> dict[str, Any]:
        """The part that is not tensors, as JSON values. All ranks call it; rank 0 gets it whole."""
        parted = self.exchange is not None and self.exchange.each_rank_samples
        complete = Rollout(list(self.complete.values()), 0, tuple(self.complete), int(parted))
        pending = [*self.pending, complete]
        if self.exchange is not None:
            pending = self.exchange.gather(pending)
        complete = pending.pop() if pending else complete
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "pending": [
                {"drawn": step.drawn, "groups": [to_json(group) for group in step.groups]}
                for step in pending
            ],
            "open": self.open,
            "held": self.held,
            "complete": [
                [position, to_json(group)]
                for position, group in zip(complete.group_indices, complete.groups, strict=True)
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
        self.complete = {
            position: group_from_json(group) for position, group in data.get("complete", [])
        }
        self.open = data.get("open", [])
        self.held = data.get("held", [])


_NUMBERS = (
    "step",
    "cursor",
    "seconds",
    "entropy",
    "entropy_weight",
    "best",
    "before",
)
