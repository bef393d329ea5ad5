"""PEFT's LoRA layers, as the tensors that they compute with."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class LinearWithAdapter:
    """base(x) + scaling * up @ (down @ x). Without an adapter `down` and `up` are None."""

    base: nn.Linear
    down: Tensor | None = None
    up: Tensor | None = None
    scaling: float = 1.0


def linear_with_adapter(module: Any) -> LinearWithAdapter | None:
    """What a linear layer computes with; None where it is another kind of layer or adapter.

    The adapter's weights are the parameters themselves. Dropout, which only training has, is left
    out.
    """
    if type(module) is nn.Linear:
        return LinearWithAdapter(module)
    kind = type(module)
    if (kind.__module__, kind.__name__) != ("peft.tuners.lora.layer", "Linear"):
        return None
    base, names = module.get_base_layer(), list(module.active_adapters)
    if type(base) is not nn.Linear or module.merged or module.disable_adapters:
        return None
    if names != list(module.lora_A) or len(names) != 1:
        return None
    (name,) = names
    variant = module.lora_variant.get(name) or module.lora_bias[name] or module.fan_in_fan_out
    down, up = module.lora_A[name], module.lora_B[name]
    if variant or type(down) is not nn.Linear or type(up) is not nn.Linear:
        return None
    return LinearWithAdapter(base, down.weight, up.weight, float(module.scaling[name]))
