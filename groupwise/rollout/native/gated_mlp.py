"""Gated MLPs of a decode step on CUDA: gate and up by our kernel, with their product.

It needs fused projections: the weights of gate and up lie next to each other.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groupwise.rollout.native.fused_projections import Replacement


class GatedMLP(nn.Module):
    """Stands for an MLP whose gate_proj has the weights of gate and up (fused_projections.py)."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp.down_proj(torch.ops.groupwise.gated_product(x, self.mlp.gate_proj.weight))


def gated_mlps(layers: Sequence[nn.Module], fused: Sequence[Replacement]) -> list[Replacement]:
    """Of the MLPs whose gate and up are fused, those that the kernel can compute."""
    if importlib.util.find_spec("triton") is None:
        return []
    mlps = {mlp for mlp, name, _ in fused if name == "gate_proj" and is_gated_mlp(mlp)}
    if mlps:
        importlib.import_module("groupwise.rollout.native.linear_kernel")
    parents = [parent for layer in layers for parent in layer.modules()]
    children = [(parent, *named) for parent in parents for named in parent.named_children()]
    return [(parent, name, GatedMLP(mlp)) for parent, name, mlp in children if mlp in mlps]


@torch.no_grad()
def is_gated_mlp(module: Any) -> bool:
    """Whether it is down(silu(gate(x)) * up(x)), which is tried, of sizes that the kernel takes."""
    linears: list[Any] = [getattr(module, f"{name}_proj", None) for name in ("gate", "up", "down")]
    if not all(type(linear) is nn.Linear and linear.bias is None for linear in linears):
        return False
    gate, up, down = linears
    weight = gate.weight
    if weight.device.type != "cuda" or weight.dtype not in (torch.bfloat16, torch.float16):
        return False
    if weight.shape != up.weight.shape or any(size % 64 for size in weight.shape):
        return False
    x = torch.linspace(-1, 1, weight.shape[1], dtype=weight.dtype, device=weight.device)[None, None]
    return torch.equal(module(x), down(F.silu(gate(x)) * up(x)))
