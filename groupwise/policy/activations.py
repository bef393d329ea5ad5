"""Activations in the backward pass: kept, recomputed, or recomputed from inputs parked on the CPU.

With checkpointing each layer keeps only its input and runs again when its gradient is due. Those
inputs are what is left of activation memory, layers x tokens x hidden size; offloading moves each
to (pinned) CPU memory once its layer has run, and back when it runs again. Same gradient, always.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from groupwise.compat.transformers import set_checkpoint_function


def checkpoint_activations(model: Any, *, offload: bool) -> None:
    """Recompute each layer of `model` in the backward pass while it is in training mode."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if offload:
        set_checkpoint_function(model, parked_checkpoint)


def parked_checkpoint(layer: Callable[..., Any], hidden: Tensor, *rest: Any) -> Any:
    """`layer(hidden, *rest)`, recomputed backward from a copy of `hidden` in CPU memory."""
    parked = Parked(hidden)
    output = checkpoint(lambda: layer(parked.take(), *rest), use_reentrant=False)
    parked.park()
    return output


class Parked:
    """A tensor that is here until it is parked and comes back, detached, when it is taken again."""

    def __init__(self, tensor: Tensor) -> None:
        self.device, self.needs_grad = tensor.device, tensor.requires_grad
        self.here: Tensor | None = tensor
        self.there: Tensor | None = None

    def park(self) -> None:
        assert self.here is not None
        pinned = self.here.is_cuda
        self.there = torch.empty_like(self.here, device="cpu", pin_memory=pinned)
        self.there.copy_(self.here.detach(), non_blocking=pinned)
        self.here = None

    def take(self) -> Tensor:
        if self.here is not None:
            return self.here
        assert self.there is not None
        back = self.there.to(self.device, non_blocking=True)
        return back.detach().requires_grad_(self.needs_grad)
