"""Decoder layers of Llama's kind on a CPU: the matrix library's products, and our C between them.

Activations lie features first, so a product is weight @ x, as weights and activations lie; with one
to three rows the matrix library is faster at the usual form. Products are in the model's precision,
all else is in fp32.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise.rollout.cpu_kernels import add_norm, gated
from groupwise.rollout.native.llama_layer import Attended, LayerWeights, Projection
from groupwise.rollout.native.transposed_linear import transposed_linear


def run_layers(
    layers: Sequence[LayerWeights], last_norm: Tensor, hidden: Tensor, attended: Attended
) -> Tensor:
    norms = [layer.attention_norm for layer in layers[1:]] + [last_norm]
    hidden_FR = hidden.t().to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    x_FR = add_norm(hidden_FR, None, layers[0].attention_norm.float(), layers[0].eps)
    for n, (layer, next_norm) in enumerate(zip(layers, norms, strict=True)):
        qkv_FR = _product(layer.qkv, x_FR)
        delta_FR = _product(layer.output, attended(n, qkv_FR.t()).t())
        x_FR = add_norm(hidden_FR, delta_FR, layer.mlp_norm.float(), layer.eps)
        delta_FR = _product(layer.down, gated(_product(layer.gate_up, x_FR)))
        x_FR = add_norm(hidden_FR, delta_FR, next_norm.float(), layer.eps)
    return x_FR.t().to(hidden.dtype)


def _product(projection: Projection, x_FR: Tensor) -> Tensor:
    x = x_FR.t().to(projection.weight.dtype)
    out_FR = transposed_linear(x, projection.weight, projection.bias).t().contiguous()
    if added := projection.low_rank:
        out_FR.addmm_(added.up, transposed_linear(x, added.down, None).t())
    return out_FR.float()
