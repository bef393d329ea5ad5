"""Weights of linear layers in 8-bit floating point (e4m3), for sampling.

Half as many bytes have to be read, and twice as many products are computed in a second.

The numbers are floating point, so one scale for all weights of a layer does: those that are 28,000
times smaller than the largest still have three bits. They are a copy, which follows the weights
whenever these have changed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.policy.fp8 import FP8, LARGEST


@dataclass(frozen=True)
class Fp8Weight:
    values: Tensor
    """(outputs, inputs)"""
    scale: Tensor
    """A number: values times this are about the weights."""
    input_scale: Tensor
    """A number by which inputs are divided. 1 where each token has a scale of its own."""
    weight: Tensor
    """What it is a copy of."""
    norm: Tensor | None
    """The weight of the RMS norm that the inputs come from, which says how large they can be."""

    @staticmethod
    @torch.no_grad()
    def of(weight: Tensor, norm: Tensor | None = None) -> "Fp8Weight":
        values = torch.empty_like(weight, dtype=FP8)
        # Two tensors: the matrix library reads scales at aligned addresses alone.
        scale, input_scale = (torch.ones(1, device=weight.device) for _ in range(2))
        own = Fp8Weight(values, scale, input_scale, weight, norm)
        own.follow_weights()
        return own

    @torch.no_grad()
    def follow_weights(self) -> None:
        self.scale.copy_(self.weight.abs().max().float().clamp(min=1e-12) / LARGEST)
        self.values.copy_((self.weight / self.scale).to(FP8))
        if self.norm is not None:  # a row whose root mean square is 1 has no larger number
            largest = self.norm.abs().max().float() * len(self.norm) ** 0.5
            self.input_scale.copy_(largest.clamp(min=1e-12) / LARGEST)
