"""Decoder layers of Llama's kind, as the tensors that they compute with.

Norm, qkv projection, rotary positions, attention, output projection, residual sum, norm, gated MLP,
residual sum. Whether a layer may be one is found by its modules' names and kinds; that it computes
just this has to be tried (fused_layers.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.rollout.native.fused_projections import FusedLinear, fuse_projections

MODULES = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


@dataclass(frozen=True)
class LayerWeights:
    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor
    eps: float
    heads: int
    kv_heads: int
    head_size: int


Attended = Callable[[int, Tensor], Tensor]
"""attended(n, qkv): of the nth layer, from the qkv projection's output (rows, heads * size)."""
RunLayers = Callable[[Sequence[LayerWeights], Tensor, Tensor, Attended], Tensor]
"""run(layers, weight of the model's last norm, hidden, attended): what the model's head reads."""


def is_llama_like(layer: Any, dtype: torch.dtype, multiple: int = 1) -> bool:
    """Of this type, and of sizes that are multiples of this number."""
    if {name for name, _ in layer.named_children()} != MODULES:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    outer: list[Any] = [getattr(attention, f"{name}_proj", None) for name in "qkvo"]
    inner: list[Any] = [getattr(mlp, f"{name}_proj", None) for name in ("gate", "up", "down")]
    if len(list(attention.children())) != 4 or any(type(x) is not nn.Linear for x in outer + inner):
        return False
    if any(x.weight.dtype != dtype for x in outer + inner):
        return False
    if any(x.bias is not None for x in (outer[3], *inner)):
        return False
    shapes = outer[0].weight.shape, outer[3].weight.shape, inner[0].weight.shape
    return all(size % multiple == 0 for shape in shapes for size in shape)


def layer_weights(layer: Any) -> LayerWeights:
    """Views of the layer's parameters, those of qkv and of gate and up made neighbours."""
    attention, mlp = layer.self_attn, layer.mlp
    fused = {(parent, name): module for parent, name, module in fuse_projections(layer)}
    qkv, gate_up = fused[attention, "q_proj"], fused[mlp, "gate_proj"]
    assert isinstance(qkv, FusedLinear) and isinstance(gate_up, FusedLinear)
    size = attention.head_dim
    return LayerWeights(
        attention_norm=layer.input_layernorm.weight,
        qkv=qkv.weight,
        qkv_bias=qkv.bias,
        output=attention.o_proj.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=gate_up.weight,
        down=mlp.down_proj.weight,
        eps=layer.input_layernorm.variance_epsilon,
        heads=attention.q_proj.out_features // size,
        kv_heads=attention.k_proj.out_features // size,
        head_size=size,
    )
