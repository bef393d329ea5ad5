"""Decoder layers of Llama's kind with products in 8 bits (e4m3).

The matrix library's kernel for one scale a matrix is the fastest, however many rows there are. What
comes out of a norm is bounded by the norm's weight and has a fixed scale. What comes out of
attention or the gate has a scale for each token, by which the product is multiplied when it is
added to the hidden states. So a token's numbers do not depend on its neighbours.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import ScalingType, scaled_mm

from groupwise.rollout.native.fp8_kernel import Delta, Fp8Rows, add_norm_in_fp8, to_fp8
from groupwise.rollout.native.llama_layer import Attended, LayerWeights, Projection


def run_layers(
    layers: Sequence[LayerWeights], last_norm: Tensor, hidden: Tensor, attended: Attended
) -> Tensor:
    delta = None
    for n, layer in enumerate(layers):
        hidden, x = _add_norm(hidden, delta, layer.attention_norm, layer.qkv, layer.eps)
        delta = _delta(to_fp8(attended(n, _product(x, layer.qkv))), layer.output)
        hidden, x = _add_norm(hidden, delta, layer.mlp_norm, layer.gate_up, layer.eps)
        delta = _delta(to_fp8(_product(x, layer.gate_up), gate_up=True), layer.down)
    last = layers[-1]
    return _add_norm(hidden, delta, last_norm, last.down, last.eps)[1].wide


def _add_norm(
    hidden: Tensor, delta: Delta | None, norm: Tensor, reader: Projection, eps: float
) -> tuple[Tensor, Fp8Rows]:
    assert reader.fp8 is not None
    return add_norm_in_fp8(hidden, delta, norm, eps, reader.fp8.input_scale)


def _product(x: Fp8Rows, projection: Projection) -> Tensor:
    """Of rows that all have the projection's own scale."""
    out = _in_fp8(x, projection)
    if added := projection.low_rank:
        out.addmm_(F.linear(x.wide, added.down), added.up.t())
    return out


def _delta(x: Fp8Rows, projection: Projection) -> Delta:
    """Of rows that have a scale each."""
    out = _in_fp8(x, projection)
    if (added := projection.low_rank) is None or x.scales is None:
        return Delta(out, x.scales)
    low_rank = F.linear(F.linear(x.wide, added.down), added.up)
    return Delta(torch.addcmul(low_rank, out, x.scales[:, None]).to(out.dtype), None)


def _in_fp8(x: Fp8Rows, projection: Projection) -> Tensor:
    fp8, whole = projection.fp8, ScalingType.TensorWise
    assert fp8 is not None
    return scaled_mm(
        x.values, fp8.values.t(), fp8.input_scale, whole, fp8.scale, whole,
        bias=projection.bias, output_dtype=x.wide.dtype,
    )  # fmt: skip
