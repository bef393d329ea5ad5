"""Decoder layers of Llama's kind by our Triton kernels.

With few rows a layer is five kernels, none of which waits for another to start; with many, the
matrix library's products are faster, and our kernels do what stands between them.
"""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from groupwise.rollout.native import linear_kernel as kernels
from groupwise.rollout.native.llama_layer import Attended, LayerWeights


def run_layers(
    layers: Sequence[LayerWeights], last_norm: Tensor, hidden: Tensor, attended: Attended
) -> Tensor:
    few = len(hidden) <= kernels.FEW_ROWS
    return (_few_rows if few else _many_rows)(layers, last_norm, hidden.contiguous(), attended)


def _few_rows(
    layers: Sequence[LayerWeights], last_norm: Tensor, hidden: Tensor, attended: Attended
) -> Tensor:
    rows = len(hidden)

    def linear(x: Any, weight: Tensor, **options: Any) -> Any:
        tiles = kernels.tiles_for(rows, *weight.shape[::-1])
        return kernels.launch(x, weight, tiles, **options)

    norms = [layer.attention_norm for layer in layers] + [last_norm]
    normed = kernels.for_norm(hidden, norms[0])
    for n, layer in enumerate(layers):
        qkv, _ = linear(normed, layer.qkv, bias=layer.qkv_bias, eps=layer.eps)
        leave = {"residual": hidden, "next_norm": layer.mlp_norm}
        hidden, normed = linear(attended(n, qkv), layer.output, **leave)
        gated, _ = kernels.launch(
            normed, layer.gate_up, kernels.GATED_TILES, eps=layer.eps, gated=True
        )
        leave = {"residual": hidden, "next_norm": norms[n + 1]}
        hidden, normed = linear(gated, layer.down, **leave)
    return kernels.add_norm(hidden, None, last_norm, layers[-1].eps)[1]


def _many_rows(
    layers: Sequence[LayerWeights], last_norm: Tensor, hidden: Tensor, attended: Attended
) -> Tensor:
    delta = None
    for n, layer in enumerate(layers):
        hidden, x = kernels.add_norm(hidden, delta, layer.attention_norm, layer.eps)
        delta = F.linear(attended(n, F.linear(x, layer.qkv, layer.qkv_bias)), layer.output)
        hidden, x = kernels.add_norm(hidden, delta, layer.mlp_norm, layer.eps)
        delta = F.linear(kernels.gated_product(x, layer.gate_up), layer.down)
    return kernels.add_norm(hidden, delta, last_norm, layers[-1].eps)[1]
