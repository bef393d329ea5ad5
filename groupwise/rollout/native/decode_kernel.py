"""Decode attention over the KV cache as one Triton kernel: store new keys and values, attend.

FlashAttention's tiles hold 64 or 128 queries; a decode step has as many as query heads share a key
head, often less than 8. This kernel's tiles hold 16, and it writes the cache itself, so a layer
needs one launch. Triton comes with torch on CUDA; elsewhere `kv_cache.py` does the same in torch.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_N = 64
"""Positions of a slot that are attended to together."""


@triton.jit
def _decode_attention(
    q_ptr, k_ptr, v_ptr, keys_ptr, values_ptr, kv_lens_ptr, out_ptr,
    scale, softcap, window,
    q_row, q_head, k_row, k_head, v_row, v_head, slot_stride, position_stride, head_stride,
    QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kv_len = tl.load(kv_lens_ptr + row).to(tl.int32)
    m, d = tl.arange(0, M), tl.arange(0, D)
    d_mask = d < HEAD_SIZE
    q_mask = (m < QUERIES_PER_KV)[:, None] & d_mask[None, :]
    heads = head * QUERIES_PER_KV + m
    q = tl.load(q_ptr + row * q_row + heads[:, None] * q_head + d[None, :], mask=q_mask, other=0.0)
    k_new = tl.load(k_ptr + row * k_row + head * k_head + d, mask=d_mask, other=0.0)
    v_new = tl.load(v_ptr + row * v_row + head * v_head + d, mask=d_mask, other=0.0)
    slot = row * slot_stride + head * head_stride
    new_position = slot + kv_len.to(tl.int64) * position_stride
    tl.store(keys_ptr + new_position + d, k_new, mask=d_mask)
    tl.store(values_ptr + new_position + d, v_new, mask=d_mask)

    # Online softmax: the new token sees itself; then, block by block, what its slot held before.
    row_max = tl.sum(q.to(tl.float32) * k_new.to(tl.float32)[None, :], 1) * scale
    if HAS_SOFTCAP:
        row_max = softcap * (2 * tl.sigmoid(2 * row_max / softcap) - 1)
    row_sum = tl.full([M], 1.0, tl.float32)
    acc = tl.zeros([M, D], tl.float32) + v_new.to(tl.float32)[None, :]
    start = 0
    if HAS_WINDOW:
        start = tl.maximum(kv_len - window + 1, 0) // N * N
    for first in range(start, kv_len, N):
        n = first + tl.arange(0, N)
        visible = n < kv_len
        if HAS_WINDOW:
            visible = visible & (kv_len - n < window)
        positions = slot + n.to(tl.int64) * position_stride
        k_mask = visible[None, :] & d_mask[:, None]
        v_mask = visible[:, None] & d_mask[None, :]
        k = tl.load(keys_ptr + positions[None, :] + d[:, None], mask=k_mask, other=0.0)
        v = tl.load(values_ptr + positions[:, None] + d[None, :], mask=v_mask, other=0.0)
        scores = tl.dot(q, k, input_precision=PRECISION) * scale
        if HAS_SOFTCAP:
            scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
        scores = tl.where(visible[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(row_max - new_max)
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        row_max = new_max
    out = out_ptr + (row * tl.num_programs(1) * QUERIES_PER_KV + heads[:, None]) * HEAD_SIZE
    tl.store(out + d[None, :], acc / row_sum[:, None], mask=q_mask)


@torch.library.custom_op("groupwise::decode_attention", mutates_args=("keys", "values"))
def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    kv_lens: Tensor,
    scale: float,
    window: int,
    softcap: float,
) -> Tensor:
    """(n, H, 1, D) queries, (n, K, 1, D) new keys and values to (n, 1, H, D).

    `keys` and `values` are a layer's (slots, length, K, D); row i is slot i, which holds
    `kv_lens[i]` tokens. A window or soft cap of 0 is none.
    """
    rows, heads, _, size = q.shape
    kv_heads = k.shape[1]
    assert keys.stride() == values.stride() and keys.stride(-1) == 1
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out = torch.empty(rows, 1, heads, size, dtype=q.dtype, device=q.device)
    kernel: Any = _decode_attention  # called as kernel[grid](...), which its type does not know
    kernel[rows, kv_heads](
        q, k, v, keys, values, kv_lens, out,
        scale, softcap, window,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2),
        QUERIES_PER_KV=heads // kv_heads, HEAD_SIZE=size,
        M=max(16, triton.next_power_of_2(heads // kv_heads)),
        N=BLOCK_N, D=max(16, triton.next_power_of_2(size)),
        HAS_WINDOW=window > 0, HAS_SOFTCAP=softcap > 0,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


@decode_attention.register_fake
def _(q: Tensor, *_: Any) -> Tensor:
    rows, heads, size = q.shape[0], q.shape[1], q.shape[3]
    return q.new_empty(rows, 1, heads, size)
