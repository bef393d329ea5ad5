"""Fp8Rows in 8-bit floating point (e4m3), written by the kernels between products, in Triton."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from groupwise.policy.fp8 import FP8, LARGEST
from groupwise.rollout.native.kernel_launch import overlaps_launches
from groupwise.rollout.native.linear_kernel import gated

LARGEST_FP8 = tl.constexpr(LARGEST)


class Fp8Rows(NamedTuple):
    """Inputs of a product."""

    wide: Tensor
    """Not rounded: adapters read these."""
    values: Tensor
    """In 8 bits."""
    scales: Tensor | None
    """(rows,): values times these are about the rows. None where all have one that is known."""


class Delta(NamedTuple):
    """What a layer adds to the hidden states."""

    values: Tensor
    scales: Tensor | None
    """(rows,), by which the values have yet to be multiplied."""


@triton.jit
def _add_norm(
    hidden_ptr, delta_ptr, delta_scale_ptr, norm_ptr, sum_ptr, out_ptr, fp8_ptr, fp8_scale_ptr,
    size, eps, SIZE: tl.constexpr, HAS_DELTA: tl.constexpr, HAS_DELTA_SCALE: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A row's sum of hidden states and what a layer adds to them, and its RMS norm."""
    row, n = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    inside, at = n < size, row * size + n
    weight = tl.load(norm_ptr + n, mask=inside, other=0.0).to(tl.float32)
    fp8_scale = tl.load(fp8_scale_ptr)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    hidden = tl.load(hidden_ptr + at, mask=inside, other=0.0)
    if HAS_DELTA:
        delta = tl.load(delta_ptr + at, mask=inside, other=0.0).to(tl.float32)
        if HAS_DELTA_SCALE:
            delta *= tl.load(delta_scale_ptr + row)
        hidden = (hidden.to(tl.float32) + delta).to(hidden.dtype)
        tl.store(sum_ptr + at, hidden, mask=inside)
    wide = hidden.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    out = (normed.to(hidden.dtype).to(tl.float32) * weight).to(hidden.dtype)
    tl.store(out_ptr + at, out, mask=inside)
    tl.store(fp8_ptr + at, _fp8(out.to(tl.float32) / fp8_scale), mask=inside)


@triton.jit
def _to_fp8(
    x_ptr, out_ptr, fp8_ptr, scale_ptr, size, x_stride,
    SIZE: tl.constexpr, GATED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A row, of gate and up their gated product, and its scale."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    row, n = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    inside = n < size
    out = tl.load(x_ptr + row * x_stride + n, mask=inside, other=0.0)
    if GATED:
        up = tl.load(x_ptr + row * x_stride + size + n, mask=inside, other=0.0)
        out = gated(out, up)
        tl.store(out_ptr + row * size + n, out, mask=inside)
    wide = out.to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(wide), 0), 1e-12) / LARGEST_FP8
    tl.store(scale_ptr + row, scale)
    tl.store(fp8_ptr + row * size + n, _fp8(wide / scale), mask=inside)


@triton.jit
def _fp8(x):
    return tl.clamp(x, -LARGEST_FP8, LARGEST_FP8).to(tl.float8e4nv)


def add_norm_in_fp8(
    hidden: Tensor, delta: Delta | None, norm: Tensor, eps: float, scale: Tensor
) -> tuple[Tensor, Fp8Rows]:
    """hidden + delta, and the RMS norm of that, divided by a scale for all rows where in 8 bits."""
    rows, size = hidden.shape
    total = hidden if delta is None else torch.empty_like(hidden)
    out = Fp8Rows(torch.empty_like(hidden), torch.empty_like(hidden, dtype=FP8), None)
    dependent = overlaps_launches(hidden.device)
    added, scales = delta or (hidden, None)
    kernel: Any = _add_norm
    kernel[rows,](
        hidden, added, scale if scales is None else scales, norm, total, out.wide, out.values,
        scale, size, eps, SIZE=triton.next_power_of_2(size), HAS_DELTA=delta is not None,
        HAS_DELTA_SCALE=scales is not None, DEPENDENT=dependent, num_warps=4, launch_pdl=dependent,
    )  # fmt: skip
    return total, out


def to_fp8(x: Tensor, *, gate_up: bool = False) -> Fp8Rows:
    """Fp8Rows with a scale for each; of (rows, 2 * outputs) of gate and up: of silu(gate) * up."""
    rows, stride = x.shape
    size = stride // 2 if gate_up else stride
    wide = x.new_empty(rows, size) if gate_up else x
    values, scales = torch.empty_like(wide, dtype=FP8), torch.empty(rows, device=x.device)
    dependent, power = overlaps_launches(x.device), triton.next_power_of_2(size)
    kernel: Any = _to_fp8
    kernel[rows,](
        x, wide, values, scales, size, stride, SIZE=power, GATED=gate_up, DEPENDENT=dependent,
        num_warps=min(max(power // 1024, 4), 16), launch_pdl=dependent,
    )  # fmt: skip
    return Fp8Rows(wide, values, scales)
