"""Linear layers of a decode step in Triton, with what comes before and after them.

With few rows a product waits for its weights alone, and for its kernel to start. One kernel reads
each weight once, in small tiles so that all of the GPU reads, and does the rest on the way: bias,
RMS norm, silu(gate) * up, the residual sum. It may start while the kernel before it ends
(programmatic dependent launch). With more rows a matrix library computes the products, and small
kernels the rest.

A norm needs a row's sum of squares, which no tile of outputs has. So whoever computes the hidden
states leaves, beside them, their product with the next norm's weight and the sum of squares of each
tile; the next linear layer adds these up and scales its outputs.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from groupwise.rollout.native.kernel_launch import (
    arrival_counters,
    multiprocessors,
    overlaps_launches,
    shared_memory,
)

FEW_ROWS = 64
"""Up to so many rows our own products are faster than a matrix library's with kernels around."""
SIZES = 64
"""Numbers of inputs and outputs must be multiples of it."""
NORM_TILE = 64
"""Numbers whose squares `for_norm` adds up."""


class Normed(NamedTuple):
    """Hidden states for a linear layer behind a norm: times its weight, and sums of squares."""

    weighted: Tensor
    squares: Tensor
    """(tiles, rows), float32."""


@triton.jit
def _linear(
    x_ptr, squares_ptr, weight_ptr, bias_ptr, residual_ptr, out_ptr,
    norm_ptr, weighted_ptr, out_squares_ptr, between_ptr, low_rank_ptr, parts_ptr, arrived_ptr,
    rows, outputs, norm_tiles, eps,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, INPUTS: tl.constexpr, SPLITS: tl.constexpr,
    WIDTH: tl.constexpr, HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    GATED: tl.constexpr, RANK: tl.constexpr, RANK_TOGETHER: tl.constexpr,
    DEPENDENT: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """WIDTH outputs of all rows; of SPLITS programs for these, the last to arrive adds up."""
    tile, split = tl.program_id(0), tl.program_id(1)
    r, i, n = tl.arange(0, M), tl.arange(0, K), tl.arange(0, N)
    o = tile * WIDTH + n
    inside = r < rows
    mine = (n < WIDTH) & (o < outputs)
    first, last = INPUTS // K * split // SPLITS, INPUTS // K * (split + 1) // SPLITS
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    x_ptrs = x_ptr + r[None, :] * INPUTS + i[:, None]
    weight_ptrs = weight_ptr + o[:, None] * INPUTS + i[None, :]
    acc, up = tl.zeros([N, M], tl.float32), tl.zeros([N, M], tl.float32)
    for step in range(first, last):
        x = tl.load(x_ptrs + step * K, mask=inside[None, :], other=0.0)
        acc = tl.dot(_load_rows(weight_ptrs + step * K, mine, WIDTH < N), x, acc)
        if GATED:
            up_ptrs = weight_ptrs + outputs * INPUTS + step * K
            up = tl.dot(_load_rows(up_ptrs, mine, WIDTH < N), x, up)
    if RANK > 0:  # noqa: SIM102  (decided when the kernel is compiled, the next when it runs)
        if split == 0:
            for begin in tl.static_range(0, RANK, RANK_TOGETHER):
                k = begin + tl.arange(0, RANK_TOGETHER)
                between = tl.load(
                    between_ptr + r[None, :] * RANK + k[:, None], mask=inside[None, :], other=0.0
                )
                low_rank_ptrs = low_rank_ptr + o[:, None] * RANK + k[None, :]
                acc = tl.dot(_load_rows(low_rank_ptrs, mine, WIDTH < N), between, acc)
                if GATED:
                    up_ptrs = low_rank_ptrs + outputs * RANK
                    up = tl.dot(_load_rows(up_ptrs, mine, WIDTH < N), between, up)
    if SPLITS > 1:
        parts = parts_ptr + tile * SPLITS * N * M
        place = tl.arange(0, N)[:, None] * M + r[None, :]
        tl.store(parts + split * N * M + place, acc)
        tl.debug_barrier()  # all threads have stored before one of them says so
        if tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") < SPLITS - 1:
            return
        tl.store(arrived_ptr + tile, 0)
        acc = tl.zeros([N, M], tl.float32)
        for part in tl.static_range(SPLITS):  # others' parts are in L2, not in L1
            acc += tl.load(parts + part * N * M + place, cache_modifier=".cg")
    kind = x_ptr.dtype.element_ty
    if HAS_NORM:
        t = tl.arange(0, T)
        seen = (t < norm_tiles)[:, None] & inside[None, :]
        squares = tl.load(squares_ptr + t[:, None] * rows + r[None, :], mask=seen, other=0.0)
        scale = tl.rsqrt(tl.sum(squares, 0) / INPUTS + eps)
        acc *= scale[None, :]
        up *= scale[None, :]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + o).to(tl.float32)[:, None]
    out = acc.to(kind)
    if GATED:
        out = gated(out, up.to(kind))
    at = r[None, :] * outputs + o[:, None]
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + at, mask=inside[None, :], other=0.0)
        out = (out.to(tl.float32) + residual.to(tl.float32)).to(kind)
        _leave_for_norm(out, o, at, inside, r, rows, tile, norm_ptr, weighted_ptr, out_squares_ptr)
    tl.store(out_ptr + at, out, mask=inside[None, :] & mine[:, None])


@triton.jit
def _load_rows(row_ptrs, mine, MASKED: tl.constexpr):
    return tl.load(row_ptrs, mask=mine[:, None], other=0.0) if MASKED else tl.load(row_ptrs)


@triton.jit
def _leave_for_norm(hidden, o, at, inside, r, rows, tile, norm_ptr, weighted_ptr, squares_ptr):
    """What a linear layer behind the next norm reads: a tile's (outputs, rows) of it."""
    wide = hidden.to(tl.float32)
    weighted = wide * tl.load(norm_ptr + o).to(tl.float32)[:, None]
    tl.store(weighted_ptr + at, weighted.to(hidden.dtype), mask=inside[None, :])
    tl.store(squares_ptr + tile * rows + r, tl.sum(wide * wide, 0), mask=inside)


@triton.jit
def gated(gate, up):
    """Rounded where separate operations would round."""
    silu = gate.to(tl.float32) * tl.sigmoid(gate.to(tl.float32))
    return (silu.to(gate.dtype).to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def _gate_each(both_ptr, out_ptr, outputs, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    """One row's (gate, up), computed before, to their gated product."""
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    row, o = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = o < outputs
    gate = tl.load(both_ptr + row * 2 * outputs + o, mask=inside)
    up = tl.load(both_ptr + row * 2 * outputs + outputs + o, mask=inside)
    tl.store(out_ptr + row * outputs + o, gated(gate, up), mask=inside)


@triton.jit
def _add_norm(
    hidden_ptr, delta_ptr, norm_ptr, sum_ptr, out_ptr, size, eps,
    SIZE: tl.constexpr, HAS_DELTA: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A row's sum of hidden states and what a layer adds to them, and its RMS norm."""
    row, n = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    inside = n < size
    weight = tl.load(norm_ptr + n, mask=inside, other=0.0).to(tl.float32)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    hidden = tl.load(hidden_ptr + row * size + n, mask=inside, other=0.0)
    if HAS_DELTA:
        delta = tl.load(delta_ptr + row * size + n, mask=inside, other=0.0)
        hidden = (hidden.to(tl.float32) + delta.to(tl.float32)).to(hidden.dtype)
        tl.store(sum_ptr + row * size + n, hidden, mask=inside)
    wide = hidden.to(tl.float32)
    normed = wide * tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    out = normed.to(hidden.dtype).to(tl.float32) * weight
    tl.store(out_ptr + row * size + n, out.to(hidden.dtype), mask=inside)


@triton.jit
def _for_norm(
    hidden_ptr, norm_ptr, weighted_ptr, squares_ptr, rows, size, M: tl.constexpr, N: tl.constexpr
):
    """What `_leave_for_norm` leaves, of hidden states that no linear layer computed."""
    tile = tl.program_id(0)
    r, o = tl.arange(0, M), tile * N + tl.arange(0, N)
    at = r[None, :] * size + o[:, None]
    hidden = tl.load(hidden_ptr + at, mask=(r < rows)[None, :], other=0.0)
    _leave_for_norm(hidden, o, at, r < rows, r, rows, tile, norm_ptr, weighted_ptr, squares_ptr)


class Tiles(NamedTuple):
    """How a product is divided."""

    width: int
    """Outputs of a program."""
    splits: int = 1
    """Programs that share these, each with a part of the inputs."""
    inputs: int = 128
    """That are multiplied at once."""


STAGES = 4
"""Of so many tiles of inputs the weights are on their way, if shared memory has room for them."""


# Measured on one H200 with the shapes of Qwen2.5-0.5B, -1.5B and -3B, and of Llama-3-8B.
def tiles_for(weight: Tensor, rows: int, *, gated: bool = False) -> Tiles:
    """All multiprocessors read equally much, since the last to end decides how long it takes."""
    outputs, inputs = weight.shape
    at_once = multiprocessors(weight.device)
    if not gated:
        tile = 128 if inputs % 128 == 0 else SIZES
        splits = min(at_once // (outputs // 64), inputs // tile // 2)
        return Tiles(64, max(splits, 1), tile)
    width = 64
    if rows > 16:  # with fewer, equal tiles that run side by side are as good
        rounds = triton.cdiv(outputs // 2, at_once * width)
        width = triton.cdiv(outputs // 2, at_once * rounds)
    return Tiles(width, inputs=64)


def low_rank_tiles(inputs: int) -> Tiles:
    """Few outputs: many programs share them."""
    tile = 128 if inputs % 128 == 0 else SIZES
    return Tiles(16, min(16, inputs // tile), tile)


def launch(
    x: Tensor | Normed,
    weight: Tensor,
    tiles: Tiles,
    *,
    bias: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
    next_norm: Tensor | None = None,
    low_rank: tuple[Tensor, Tensor] | None = None,
    dependent: bool = True,
) -> tuple[Tensor, Normed | None]:
    """x @ weight.T for few rows. With `residual` that is added, and what `next_norm` needs left.

    `low_rank`: (rows, rank) and (all outputs, rank), whose product is added to that of the weights.
    The former are of x as it comes, like the latter's: before they are scaled by a norm.
    """
    source, squares = x if isinstance(x, Normed) else (x, None)
    rows, inputs = source.shape
    outputs = len(weight) // 2 if gated else len(weight)
    assert source.is_contiguous() and weight.is_contiguous() and weight.shape[1] == inputs
    assert inputs % tiles.inputs == 0
    assert outputs % tiles.width == 0 if not gated else tiles.splits == 1
    between, up = low_rank or (source, weight)
    rank = between.shape[1] if low_rank else 0
    assert not rank or (between.is_contiguous() and up.shape == (len(weight), rank))
    dependent = dependent and overlaps_launches(source.device)
    padded, n = (max(16, triton.next_power_of_2(count)) for count in (rows, tiles.width))
    count = triton.cdiv(outputs, tiles.width)
    out = source.new_empty(rows, outputs)
    left = None
    if residual is not None:
        assert residual.is_contiguous()
        sums = torch.empty(count, rows, device=source.device)
        left = Normed(torch.empty_like(out), sums)
    parts = arrival = out
    if tiles.splits > 1:
        size = count * tiles.splits * n * padded
        parts, arrival = torch.empty(size, device=source.device), arrival_counters(source.device)
    stage_bytes = (n * (2 if gated else 1) + padded) * tiles.inputs * source.element_size()
    stages = min(STAGES, max(shared_memory(source.device) // stage_bytes, 1))
    kernel: Any = _linear  # called as kernel[grid](...), which its type does not know
    kernel[count, tiles.splits](
        source, out if squares is None else squares, weight, out if bias is None else bias,
        out if residual is None else residual, out,
        out if next_norm is None else next_norm, *(left or (out, out)), between, up, parts, arrival,
        rows, outputs, 0 if squares is None else len(squares), eps,
        M=padded, N=n, K=tiles.inputs, INPUTS=inputs, SPLITS=tiles.splits, WIDTH=tiles.width,
        HAS_NORM=squares is not None, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None,
        GATED=gated, RANK=rank, RANK_TOGETHER=max(min(rank, 64), 16), DEPENDENT=dependent,
        T=16 if squares is None else triton.next_power_of_2(len(squares)),
        num_warps=4, num_stages=stages, launch_pdl=dependent,
    )  # fmt: skip
    return out, left


def for_norm(hidden: Tensor, norm: Tensor) -> Normed:
    """What a linear layer behind this norm reads of these hidden states."""
    rows, size = hidden.shape
    left = Normed(
        torch.empty_like(hidden), torch.empty(size // NORM_TILE, rows, device=hidden.device)
    )
    kernel: Any = _for_norm
    kernel[size // NORM_TILE,](
        hidden, norm, *left, rows, size,
        M=max(16, triton.next_power_of_2(rows)), N=NORM_TILE, num_warps=4,
    )  # fmt: skip
    return left


def add_norm(
    hidden: Tensor, delta: Tensor | None, norm: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """hidden + delta, and the RMS norm of that."""
    rows, size = hidden.shape
    total = hidden if delta is None else torch.empty_like(hidden)
    out, dependent = torch.empty_like(hidden), overlaps_launches(hidden.device)
    kernel: Any = _add_norm
    kernel[rows,](
        hidden, hidden if delta is None else delta, norm, total, out, size, eps,
        SIZE=triton.next_power_of_2(size), HAS_DELTA=delta is not None, DEPENDENT=dependent,
        num_warps=4, launch_pdl=dependent,
    )  # fmt: skip
    return total, out


def gate_each(both: Tensor) -> Tensor:
    """(rows, 2 * outputs) of gate and up to silu(gate) * up."""
    rows, outputs = both.shape[0], both.shape[1] // 2
    out, dependent = both.new_empty(rows, outputs), overlaps_launches(both.device)
    kernel: Any = _gate_each
    kernel[rows, triton.cdiv(outputs, 1024)](
        both, out, outputs, BLOCK=1024, DEPENDENT=dependent, num_warps=4, launch_pdl=dependent
    )
    return out


@torch.library.custom_op("groupwise::gated_product", mutates_args=())
def gated_product(x: Tensor, weight: Tensor) -> Tensor:
    """(..., inputs) and the (2 * outputs, inputs) weights of gate and up to (..., outputs)."""
    outputs, inputs = weight.shape[0] // 2, weight.shape[1]
    flat = x.reshape(-1, inputs).contiguous()
    if len(flat) > FEW_ROWS:
        out = gate_each(F.linear(flat, weight))
    else:
        out, _ = launch(flat, weight, tiles_for(weight, len(flat), gated=True), gated=True)
    return out.view(*x.shape[:-1], outputs)


@gated_product.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0] // 2)
