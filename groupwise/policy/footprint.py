"""What a policy and its training hold in memory all the time. Activations come on top of it."""

from dataclasses import dataclass
from typing import Any

import torch

from groupwise.config import OptimizerSettings
from groupwise.policy.quantization import weight_bytes, weight_count
from groupwise.policy.sizes import GRADIENT_BYTES, MASTER_BYTES, MOMENT_BYTES


@dataclass(frozen=True)
class Footprint:
    """Counts of weights, and bytes: of the weights, and of what the optimizer keeps for them."""

    parameters: int
    trainable: int
    weights: int
    training: int
    offloaded: bool = False

    def __str__(self) -> str:
        share = 100 * self.trainable / max(self.parameters, 1)
        where = " in CPU memory" if self.offloaded else ""
        return (
            f"{self.trainable / 1e6:.3g} M trainable ({share:.3g} %), weights "
            f"{megabytes(self.weights)}, gradients and optimizer {megabytes(self.training)}{where}"
        )


def footprint(model: Any, settings: OptimizerSettings) -> Footprint:
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    return Footprint(
        parameters=sum(weight_count(p) for p in parameters),
        trainable=sum(p.numel() for p in trained),
        weights=sum(weight_bytes(p) for p in parameters),
        training=sum(p.numel() * training_bytes(p.dtype, settings) for p in trained),
        offloaded=settings.offload,
    )


def training_bytes(dtype: torch.dtype, settings: OptimizerSettings) -> int:
    """Per trainable weight: fp32 gradient, two moments, and an fp32 master where there is one."""
    master = MASTER_BYTES if dtype != torch.float32 or settings.offload else 0
    return GRADIENT_BYTES + master + MOMENT_BYTES[settings.kind]


def megabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
