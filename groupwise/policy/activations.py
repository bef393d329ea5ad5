"""Activations in the backward pass: kept, recomputed, or recomputed from inputs on the CPU.

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
        set_checkpoint_function(model, checkpoint_with_offload)


def checkpoint_with_offload(layer: Callable[..., Any], hidden: Tensor, *rest: Any) -> Any:
    """`layer(hidden, *rest)`, recomputed backward from a copy of `hidden` in CPU memory."""
    inputs = OffloadedTensor(hidden)
    output = checkpoint(lambda: layer(inputs.load(), *rest), use_reentrant=False)
    inputs.offload()
    return output


class OffloadedTensor:
    """A tensor on its device until `offload`; from then on `load` copies it back, detached."""

    def __init__(self, tensor: Tensor) -> None:
        self.device, self.needs_grad = tensor.device, tensor.requires_grad
        self.on_device: Tensor | None = tensor
        self.on_cpu: Tensor | None = None

    def offload(self) -> None:
        assert self.on_device is not None
        pinned = self.on_device.is_cuda
        self.on_cpu = torch.empty_like(self.on_device, device="cpu", pin_memory=pinned)
        self.on_cpu.copy_(self.on_device.detach(), non_blocking=pinned)
        self.on_device = None

    def load(self) -> Tensor:
        if self.on_device is not None:
            return self.on_device
        assert self.on_cpu is not None
        copy = self.on_cpu.to(self.device, non_blocking=True)
        return copy.detach().requires_grad_(self.needs_grad)
