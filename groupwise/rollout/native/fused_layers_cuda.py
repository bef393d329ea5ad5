"""Decoder layers of Llama's kind by our Triton kernels.

With few rows a layer is five kernels, none of which waits for another to start; with many, the
matrix library's products are faster, and our kernels do what stands between them. Layers with
weights in 8 bits are in fp8_layers_cuda.py.
"""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from groupwise.rollout.native import fp8_layers_cuda
from groupwise.rollout.native import linear_kernel as kernels
from groupwise.rollout.native.llama_layer import Attended, LayerWeights, Projection

LEAST_RANK = 16
"""The matrix units multiply no fewer numbers."""


def run_layers(
    layers: Sequence[LayerWeights], last_norm: Tensor, hidden: Tensor, attended: Attended
) -> Tensor:
    if layers[0].qkv.fp8 is not None:
        run = fp8_layers_cuda.run_layers
    else:
        run = run_few_rows if len(hidden) <= kernels.FEW_ROWS else run_many_rows
    return run(layers, last_norm, hidden.contiguous(), attended)


def run_few_rows(
    layers: Sequence[LayerWeights], last_norm: Tensor, hidden: Tensor, attended: Attended
) -> Tensor:
    norms = [layer.attention_norm for layer in layers] + [last_norm]
    normed = kernels.for_norm(hidden, norms[0])
    for n, layer in enumerate(layers):
        qkv, _ = _launch(normed, layer.qkv, eps=layer.eps)
        leave: dict[str, Any] = {"residual": hidden, "next_norm": layer.mlp_norm}
        hidden, normed = _launch(attended(n, qkv), layer.output, **leave)
        gated, _ = _launch(normed, layer.gate_up, eps=layer.eps, gated=True)
        leave = {"residual": hidden, "next_norm": norms[n + 1]}
        hidden, normed = _launch(gated, layer.down, **leave)
    return kernels.add_norm(hidden, None, last_norm, layers[-1].eps)[1]


def _launch(x: Any, projection: Projection, *, gated: bool = False, **options: Any) -> Any:
    source: Tensor = x.weighted if isinstance(x, kernels.Normed) else x
    weight, added = projection.weight, projection.low_rank
    if added is not None:
        tiles = kernels.low_rank_tiles(weight.shape[1])
        options["low_rank"] = kernels.launch(source, added.down, tiles)[0], added.up
    tiles = kernels.tiles_for(weight, len(source), gated=gated)
    return kernels.launch(x, weight, tiles, bias=projection.bias, gated=gated, **options)


def run_many_rows(
    layers: Sequence[LayerWeights], last_norm: Tensor, hidden: Tensor, attended: Attended
) -> Tensor:
    delta = None
    for n, layer in enumerate(layers):
        hidden, x = kernels.add_norm(hidden, delta, layer.attention_norm, layer.eps)
        delta = _product(attended(n, _product(x, layer.qkv)), layer.output)
        hidden, x = kernels.add_norm(hidden, delta, layer.mlp_norm, layer.eps)
        delta = _product(kernels.gate_each(_product(x, layer.gate_up)), layer.down)
    return kernels.add_norm(hidden, delta, last_norm, layers[-1].eps)[1]


def _product(x: Tensor, projection: Projection) -> Tensor:
    out = F.linear(x, projection.weight, projection.bias)
    if added := projection.low_rank:
        out.addmm_(F.linear(x, added.down), added.up.t())
    return out
