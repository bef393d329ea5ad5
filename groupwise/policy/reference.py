"""The model that KL is measured against: frozen at the start, copied every so often, or mixed."""

import copy

import torch
from torch import Tensor

from groupwise.config import ReferenceSettings
from groupwise.policy.load import Policy, make_policy


class Reference:
    """Reference(policy, settings).policy gives log-probs; `refresh` follows the policy when due."""

    def __init__(self, start: Policy, settings: ReferenceSettings) -> None:
        model = copy.deepcopy(start.model).requires_grad_(False)
        self.policy = make_policy(model, start.tokenizer, start.layout)
        self.settings = settings

    @property
    def moves(self) -> bool:
        """Whether its weights are state of the run, to be kept in checkpoints."""
        return self.settings.kind != "frozen"

    @torch.no_grad()
    def refresh(self, policy: Policy, step: int) -> None:
        if not self.moves or step % self.settings.every:
            return
        share = 1.0 if self.settings.kind == "copied" else self.settings.alpha
        source = dict(policy.model.named_parameters())
        for name, weight in self.policy.model.named_parameters():
            weight.lerp_(source[name].to(weight), share)

    def state(self) -> dict[str, Tensor]:
        return {name: weight.detach() for name, weight in self.policy.model.named_parameters()}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, weight in self.policy.model.named_parameters():
            weight.copy_(tensors[name])
