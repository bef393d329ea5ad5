"""The model that KL is measured against: frozen at the start, copied every so often, or mixed.

Without an adapter it is a second model. With one it is the policy's own model:
the start is the policy with its adapter off; a reference that moves, or a start that already had an
adapter, is the policy with other adapter weights for the length of a forward pass.

Training knows it as a `KLReference`; one in another process is remote/reference_client.py.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from groupwise.batch import Batch
from groupwise.config import ReferenceSettings
from groupwise.policy.load import make_policy
from groupwise.policy.logprobs import batch_logprobs
from groupwise.policy.policy import Policy
from groupwise.policy.training_layers import PLAIN, TrainingLayers


class KLReference(Protocol):
    """Gives log-probs to answers and may follow the policy; the rest is for checkpoints."""

    def logprobs(self, batch: Batch, temperature: float, tokens_at_once: int) -> Tensor:
        """(B, T), on any device."""
        ...

    def refresh(self, policy: Policy, step: int) -> None: ...

    saved: bool
    """Whether its tensors are state of the run, to be kept in checkpoints."""

    def state(self) -> dict[str, Tensor]: ...

    def load(self, tensors: dict[str, Tensor]) -> None: ...


class Reference:
    """Reference(policy, settings) in this process; `policy` is what gives its log-probs."""

    def __init__(
        self, start: Policy, settings: ReferenceSettings, layers: TrainingLayers = PLAIN
    ) -> None:
        self.settings = settings
        self.layers = layers
        self.weights: dict[str, Tensor] = {}
        adapter = start.adapter
        if adapter is None:
            model = copy.deepcopy(start.model).requires_grad_(False)
            self.policy = make_policy(model, start.tokenizer, start.layout)
            self.weights = {name: w.detach() for name, w in model.named_parameters()}
            self.saved = self.moves
        elif adapter.starts_as_base and not self.moves:
            self.policy = _inside(start, adapter.off)
            self.saved = False
        else:
            self.weights = {n: w.detach().clone() for n, w in adapter.weights().items()}
            self.policy = _inside(start, lambda: adapter.with_weights(self.weights))
            self.saved = True

    saved: bool

    @property
    def moves(self) -> bool:
        return self.settings.kind != "frozen"

    def logprobs(self, batch: Batch, temperature: float, tokens_at_once: int) -> Tensor:
        logprobs_BT, _ = batch_logprobs(
            self.policy, batch, temperature, tokens_at_once, layers=self.layers
        )
        return logprobs_BT

    @torch.no_grad()
    def refresh(self, policy: Policy, step: int) -> None:
        if not self.moves or step % self.settings.every:
            return
        share = 1.0 if self.settings.kind == "copied" else self.settings.alpha
        source = dict(policy.model.named_parameters())
        for name, weight in self.weights.items():
            weight.lerp_(source[name].to(weight), share)

    def state(self) -> dict[str, Tensor]:
        return self.weights

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, weight in self.weights.items():
            weight.copy_(tensors[name])


def _inside(policy: Policy, context: Callable[[], AbstractContextManager[None]]) -> Policy:
    """The policy, each of whose passes through the model happens inside `context()`."""

    def body(**inputs: Any) -> Tensor:
        with context():
            return policy.body(**inputs)

    def head(hidden: Tensor) -> Tensor:
        with context():
            return policy.head(hidden)

    return replace(policy, body=body, head=head)
