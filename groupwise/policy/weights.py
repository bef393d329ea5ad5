"""The weights that training changes, by name: what an engine with a copy of its own is sent."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from groupwise.errors import ModelError
from groupwise.policy.policy import Policy


def trained_weights(policy: Policy) -> dict[str, Tensor]:
    """All that training changes: the adapter's weights where there is one, else the model's."""
    if policy.adapter is not None:
        return {name: weight.detach() for name, weight in policy.adapter.weights().items()}
    return {name: weight.detach() for name, weight in policy.model.named_parameters()}


@torch.no_grad()
def copy_into(targets: Mapping[str, Tensor], weights: Iterable[tuple[str, Tensor]]) -> None:
    """Each weight into the target of its name; one that is the target itself stays as it is."""
    for name, weight in weights:
        if name not in targets:
            raise ModelError(f"the engine's model has no weight {name!r}")
        if targets[name].data_ptr() != weight.data_ptr():
            targets[name].copy_(weight)
