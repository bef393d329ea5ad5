"""Attention of one new token per slot, as one kernel: store its key and value, then look back.

FlashAttention's tiles hold 64 or 128 queries; a decode step has as many as query heads share a key
head, often less than 8. This kernel's tiles hold 16, and it writes the cache itself, so a layer
needs one launch. Triton comes with torch on CUDA; elsewhere `cache.py` does the same in torch.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Places of a slot that are looked at together."""


@triton.jit
def _attend(
    q_ptr, k_ptr, v_ptr, keys_ptr, values_ptr, fill_ptr, out_ptr,
    scale, softcap, window,
    q_row, q_head, k_row, k_head, v_row, v_head, slot_stride, place_stride, head_stride,
    SHARE: tl.constexpr, SIZE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    fill = tl.load(fill_ptr + row).to(tl.int32)
    m, d = tl.arange(0, M), tl.arange(0, D)
    real = d < SIZE
    mine = (m < SHARE)[:, None] & real[None, :]
    heads = head * SHARE + m
    q = tl.load(q_ptr + row * q_row + heads[:, None] * q_head + d[None, :], mask=mine, other=0.0)
    k_new = tl.load(k_ptr + row * k_row + head * k_head + d, mask=real, other=0.0)
    v_new = tl.load(v_ptr + row * v_row + head * v_head + d, mask=real, other=0.0)
    slot = row * slot_stride + head * head_stride
    place = slot + fill.to(tl.int64) * place_stride
    tl.store(keys_ptr + place + d, k_new, mask=real)
    tl.store(values_ptr + place + d, v_new, mask=real)

    # The new token sees itself; then, block by block, what its slot held before.
    top = tl.sum(q.to(tl.float32) * k_new.to(tl.float32)[None, :], 1) * scale
    if SOFTCAP:
        top = softcap * (2 * tl.sigmoid(2 * top / softcap) - 1)
    total = tl.full([M], 1.0, tl.float32)
    mean = tl.zeros([M, D], tl.float32) + v_new.to(tl.float32)[None, :]
    start = 0
    if WINDOW:
        start = tl.maximum(fill - window + 1, 0) // N * N
    for first in range(start, fill, N):
        n = first + tl.arange(0, N)
        seen = n < fill
        if WINDOW:
            seen = seen & (fill - n < window)
        places = slot + n.to(tl.int64) * place_stride
        k = tl.load(
            keys_ptr + places[None, :] + d[:, None], mask=seen[None, :] & real[:, None], other=0.0
        )
        v = tl.load(
            values_ptr + places[:, None] + d[None, :], mask=seen[:, None] & real[None, :], other=0.0
        )
        scores = tl.dot(q, k, input_precision=PRECISION) * scale
        if SOFTCAP:
            scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(weights, 1)
        mean = mean * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        top = higher
    out = out_ptr + (row * tl.num_programs(1) * SHARE + heads[:, None]) * SIZE + d[None, :]
    tl.store(out, mean / total[:, None], mask=mine)


@torch.library.custom_op("groupwise::attend_slots", mutates_args=("keys", "values"))
def attend_slots(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    fill: Tensor,
    scale: float,
    window: int,
    softcap: float,
) -> Tensor:
    """(n, H, 1, D) queries, (n, K, 1, D) keys and values to (n, 1, H, D).

    `keys` and `values` are a layer's (slots, length, K, D); row i is slot i, whose `fill[i]` places
    are taken. A window or soft cap of 0 is none.
    """
    rows, heads, _, size = q.shape
    shared = k.shape[1]
    assert keys.stride() == values.stride() and keys.stride(-1) == 1
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out = torch.empty(rows, 1, heads, size, dtype=q.dtype, device=q.device)
    kernel: Any = _attend  # it is called as kernel[grid](...), which its type does not know
    kernel[rows, shared](
        q, k, v, keys, values, fill, out,
        scale, softcap, window,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2),
        SHARE=heads // shared, SIZE=size,
        M=max(16, triton.next_power_of_2(heads // shared)),
        N=BLOCK, D=max(16, triton.next_power_of_2(size)),
        WINDOW=window > 0, SOFTCAP=softcap > 0,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


@attend_slots.register_fake
def _(q: Tensor, *_: Any) -> Tensor:
    rows, heads, size = q.shape[0], q.shape[1], q.shape[3]
    return q.new_empty(rows, 1, heads, size)
