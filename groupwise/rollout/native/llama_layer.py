"""Decoder layers of Llama's kind, as the tensors that they compute with.

Norm, qkv projection, in Qwen3 a norm of each query and key, rotary positions, attention, output
projection, residual sum, norm, gated MLP, residual sum. Each projection may have a LoRA adapter.
Whether a layer may be one is found by its modules' names and kinds; that it computes just this has
to be tried (fused_layers.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from groupwise.compat.peft import LinearWithAdapter, linear_with_adapter
from groupwise.rollout.native.fp8_weight import Fp8Weight
from groupwise.rollout.native.fused_projections import FusedLinear, can_be_fused
from groupwise.rollout.native.low_rank import LowRank, low_rank

MODULES = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}


@dataclass(frozen=True)
class Projection:
    """Linear layers that read the same input, as one."""

    weight: Tensor
    bias: Tensor | None
    low_rank: LowRank | None
    fp8: Fp8Weight | None = None
    """The weight in 8 bits, where that is what inputs are multiplied by."""

    def in_fp8(self, norm: Tensor | None = None) -> "Projection":
        """`norm`: the weight of the norm that its inputs come from, if they do."""
        return replace(self, fp8=Fp8Weight.of(self.weight, norm))

    def follow_weights(self) -> None:
        for copy in (self.low_rank, self.fp8):
            if copy is not None:
                copy.follow_weights()


@dataclass(frozen=True)
class HeadNorms:
    """Weights of the RMS norms that each query and each key has of its own."""

    query: Tensor
    key: Tensor
    eps: float

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rounded where the model's own norms round."""
        q, k = (F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(x.dtype) for x in (q, k))
        return q * self.query, k * self.key


@dataclass(frozen=True)
class LayerWeights:
    attention_norm: Tensor
    qkv: Projection
    head_norms: HeadNorms | None
    output: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection
    eps: float
    heads: int
    kv_heads: int
    head_size: int

    def follow_weights(self) -> None:
        """The layer's weights have changed where they are: so do what is copied of them."""
        for projection in (self.qkv, self.output, self.gate_up, self.down):
            projection.follow_weights()

    def in_fp8(self) -> "LayerWeights":
        return replace(
            self,
            qkv=self.qkv.in_fp8(self.attention_norm),
            output=self.output.in_fp8(),
            gate_up=self.gate_up.in_fp8(self.mlp_norm),
            down=self.down.in_fp8(),
        )


Attended = Callable[[int, Tensor], Tensor]
"""attended(n, qkv): of the nth layer, from the qkv projection's output (rows, heads * size)."""
RunLayers = Callable[[Sequence[LayerWeights], Tensor, Tensor, Attended], Tensor]
"""run(layers, weight of the model's last norm, hidden, attended): what the model's head reads."""


def is_llama_like(layer: Any, dtype: torch.dtype, multiple: int = 1) -> bool:
    """Of this type, and of sizes that are multiples of this number."""
    if {name for name, _ in layer.named_children()} != MODULES:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    children = {name for name, _ in attention.named_children()}
    if children not in (PROJECTIONS, PROJECTIONS | HEAD_NORMS):
        return False
    outer = _linears(attention, "q_proj", "k_proj", "v_proj", "o_proj")
    inner = _linears(mlp, "gate_proj", "up_proj", "down_proj")
    if outer is None or inner is None or not _is_silu(getattr(mlp, "act_fn", None)):
        return False
    if not (
        can_be_fused([x.base for x in outer[:3]]) and can_be_fused([x.base for x in inner[:2]])
    ):
        return False
    weights = [w for x in outer + inner for w in (x.base.weight, x.down, x.up) if w is not None]
    if any(weight.dtype != dtype for weight in weights):
        return False
    if any(x.base.bias is not None for x in (outer[3], *inner)):
        return False
    if children >= HEAD_NORMS:
        norms = attention.q_norm, attention.k_norm
        if any(norm.weight.shape != (attention.head_dim,) for norm in norms):
            return False
    shapes = outer[0].base.weight.shape, outer[3].base.weight.shape, inner[0].base.weight.shape
    return all(size % multiple == 0 for shape in shapes for size in shape)


def layer_weights(layer: Any, *, least_rank: int = 1) -> LayerWeights:
    """Views of the layer's parameters, those of qkv and of gate and up made neighbours.

    The ranks of adapters are filled up as `low_rank` says.
    """
    attention, mlp = layer.self_attn, layer.mlp

    def projection(module: Any, *names: str) -> Projection:
        linears = _linears(module, *names)
        assert linears is not None
        bases = [linear.base for linear in linears]
        joined = FusedLinear(bases) if len(bases) > 1 else bases[0]
        return Projection(joined.weight, joined.bias, low_rank(linears, least_rank=least_rank))

    size, norms = attention.head_dim, None
    if hasattr(attention, "q_norm"):
        weights = attention.q_norm.weight, attention.k_norm.weight
        norms = HeadNorms(*weights, attention.q_norm.variance_epsilon)
    return LayerWeights(
        attention_norm=layer.input_layernorm.weight,
        qkv=projection(attention, "q_proj", "k_proj", "v_proj"),
        head_norms=norms,
        output=projection(attention, "o_proj"),
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=projection(mlp, "gate_proj", "up_proj"),
        down=projection(mlp, "down_proj"),
        eps=layer.input_layernorm.variance_epsilon,
        heads=attention.q_proj.out_features // size,
        kv_heads=attention.k_proj.out_features // size,
        head_size=size,
    )


def _linears(module: Any, *names: str) -> list[LinearWithAdapter] | None:
    found = [linear_with_adapter(getattr(module, name, None)) for name in names]
    return [linear for linear in found if linear is not None] if all(found) else None


def _is_silu(activation: Any) -> bool:
    if activation is None:
        return False
    x = torch.linspace(-8, 8, 64)
    return torch.equal(activation(x), F.silu(x))
