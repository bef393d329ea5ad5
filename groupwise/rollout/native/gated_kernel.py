"""silu(gate(x)) * up(x) of a gated MLP in Triton.

With few rows these products wait for the weights alone. One pass over both weights saves writing
the two outputs, reading them again, and a launch. With more, a matrix library computes them.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

FEW_ROWS = 64
"""Up to so many rows, one kernel is faster than a matrix library's product and another kernel."""
TILE = 64
"""Of outputs, and of inputs at a time: sizes of the weights must be multiples of it."""


@triton.jit
def _gated_product(
    x_ptr, weight_ptr, out_ptr, rows, outputs, inputs,
    R: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    r, i = tl.arange(0, R), tl.arange(0, TILE)
    o = tl.program_id(0) * TILE + tl.arange(0, TILE)
    gate, up = tl.zeros([TILE, R], tl.float32), tl.zeros([TILE, R], tl.float32)
    inside = (r < rows)[None, :]
    x_ptrs = x_ptr + r[None, :] * inputs + i[:, None]
    gate_ptrs = weight_ptr + o[:, None] * inputs + i[None, :]
    for start in range(0, inputs, TILE):
        x = tl.load(x_ptrs + start, mask=inside, other=0.0)
        gate = tl.dot(tl.load(gate_ptrs + start), x, gate)
        up = tl.dot(tl.load(gate_ptrs + outputs * inputs + start), x, up)
    gated = _gated(gate.to(x_ptr.dtype.element_ty), up.to(x_ptr.dtype.element_ty))
    tl.store(out_ptr + r[None, :] * outputs + o[:, None], gated, mask=inside)


@triton.jit
def _gated(gate, up):
    """Rounded where separate operations would round."""
    silu = gate.to(tl.float32) * tl.sigmoid(gate.to(tl.float32))
    return (silu.to(gate.dtype).to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def _gate_each(both_ptr, out_ptr, outputs, BLOCK: tl.constexpr):
    """One row's (gate, up), computed before, to their gated product."""
    row, o = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = o < outputs
    gate = tl.load(both_ptr + row * 2 * outputs + o, mask=inside)
    up = tl.load(both_ptr + row * 2 * outputs + outputs + o, mask=inside)
    tl.store(out_ptr + row * outputs + o, _gated(gate, up), mask=inside)


@torch.library.custom_op("groupwise::gated_product", mutates_args=())
def gated_product(x: Tensor, weight: Tensor) -> Tensor:
    """(..., inputs) and the (2 * outputs, inputs) weights of gate and up to (..., outputs)."""
    outputs, inputs = weight.shape[0] // 2, weight.shape[1]
    x = x.contiguous()
    out = x.new_empty(*x.shape[:-1], outputs)
    rows = x.numel() // inputs
    if rows > FEW_ROWS:
        gate_each: Any = _gate_each  # called as kernel[grid](...), which its type does not know
        gate_each[rows, triton.cdiv(outputs, 1024)](
            F.linear(x, weight), out, outputs, BLOCK=1024, num_warps=4
        )
        return out
    kernel: Any = _gated_product
    kernel[outputs // TILE,](
        x, weight, out, rows, outputs, inputs,
        R=max(16, triton.next_power_of_2(rows)), TILE=TILE, num_warps=4, num_stages=4,
    )  # fmt: skip
    return out


@gated_product.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0] // 2)
