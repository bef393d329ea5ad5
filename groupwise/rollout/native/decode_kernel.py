"""Decode attention over KV pages as one Triton kernel: store new keys and values, attend, merge.

FlashAttention's tiles hold 64 or 128 queries; a decode step has as many as query heads share a key
head, often less than 8. This kernel's tiles hold 16, and it writes the cache itself, so a layer
needs one launch. A row's past is split between programs, so that few rows fill a GPU too; the
program that comes last merges their parts, always in the same order. Triton comes with torch on
CUDA; elsewhere `kv_cache.py` does the same in torch.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from groupwise.rollout.native.kernel_launch import (
    arrival_counters,
    multiprocessors,
    overlaps_launches,
)
from groupwise.rollout.native.llama_layer import HeadNorms
from groupwise.rollout.native.rotary_kernel import load_heads, load_rotary

TILE_BYTES = 16_384
"""Of a tile's keys, and again of its values; a tile has at most 64 positions of the past."""
PROGRAM_BYTES = 65_536
"""The past is split until a multiprocessor's programs have tiles of so many bytes in all."""
MIN_SPLIT = 256
"""Tokens of the past that are worth a program of their own."""
MAX_SPLITS = 64
MERGED_TOGETHER: tl.constexpr = tl.constexpr(4)
"""Parts that the merge loads at once."""


@triton.jit
def _scores(products, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """Attention scores in units of log 2: their softmax is taken with exp2, the faster one."""
    scores = products * scale
    if HAS_SOFTCAP:
        scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
    return scores * 1.4426950408889634


@triton.jit
def _decode_attention(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, keys_ptr, values_ptr,
    page_table_ptr, kv_lens_ptr, out_ptr, parts_ptr, stats_ptr, arrived_ptr,
    scale, softcap, eps, window,
    q_row, q_head, k_row, k_head, v_row, v_head, rotary_row, table_row, table_width,
    QUERIES_PER_KV: tl.constexpr, HEAD_SIZE: tl.constexpr, PAGE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, MIN_TILES: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    HAS_ROTARY: tl.constexpr, HAS_NORM: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    row, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    kv_heads, splits = tl.num_programs(1), tl.num_programs(2)
    kv_len = tl.load(kv_lens_ptr + row).to(tl.int32)
    m, d = tl.arange(0, M), tl.arange(0, D)
    d_mask = d < HEAD_SIZE
    q_mask = (m < QUERIES_PER_KV)[:, None] & d_mask[None, :]
    heads = head * QUERIES_PER_KV + m
    q_ptrs = q_ptr + row * q_row + heads[:, None] * q_head
    k_ptrs = k_ptr + row * k_row + head * k_head + tl.arange(0, 1)[:, None]
    if HAS_ROTARY:
        rotary = row * rotary_row
        cos, sin = load_rotary(cos_ptr + rotary, sin_ptr + rotary, HEAD_SIZE, D)
        q = load_heads(q_ptrs, q_mask, cos, sin, q_norm_ptr, eps, HEAD_SIZE, D, HAS_NORM)
        k_new = load_heads(
            k_ptrs, d_mask[None, :], cos, sin, k_norm_ptr, eps, HEAD_SIZE, D, HAS_NORM
        )
    else:
        q = tl.load(q_ptrs + d[None, :], mask=q_mask, other=0.0)
        k_new = tl.load(k_ptrs + d[None, :], mask=d_mask[None, :], other=0.0)
    v_new = tl.load(v_ptr + row * v_row + head * v_head + d, mask=d_mask, other=0.0)
    table_ptr = page_table_ptr + row * table_row
    in_page = head * PAGE * HEAD_SIZE

    # Split s has the tiles s, s + used_splits, and so on: where it begins needs no length, so the
    # first pages are looked up while the length is on its way.
    tile = split
    if HAS_WINDOW:
        tile += tl.maximum(kv_len - window + 1, 0) // N
    pages = _pages(table_ptr, tile, table_width, PAGE, N)
    last_tile = tl.cdiv(kv_len, N)
    if HAS_WINDOW:
        last_tile = tl.where(window > 1, last_tile, 0)  # of 1: the new token alone
    tiles = last_tile - tile + split
    used_splits = tl.minimum(tl.maximum(tl.cdiv(tiles, MIN_TILES), 1), splits)
    if split >= used_splits:
        return

    # Online softmax over this split's tiles.
    row_max = tl.full([M], float("-inf"), tl.float32)
    weight_sums = tl.zeros([M, N], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for tile in range(tile, last_tile, used_splits):  # noqa: B020
        n = tile * N + tl.arange(0, N)
        visible = n < kv_len
        if HAS_WINDOW:
            visible = visible & (kv_len - n < window)
        positions = pages + in_page + n % PAGE * HEAD_SIZE
        pages = _pages(table_ptr, tile + used_splits, table_width, PAGE, N)
        mask = visible[:, None] & d_mask[None, :]
        k = tl.load(keys_ptr + positions[:, None] + d[None, :], mask=mask, other=0.0)
        v = tl.load(values_ptr + positions[:, None] + d[None, :], mask=mask, other=0.0)
        products = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        scores = _scores(products, scale, softcap, HAS_SOFTCAP)
        scores = tl.where(visible[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - new_max[:, None])
        rescale = tl.exp2(row_max - new_max)[:, None]
        weight_sums = weight_sums * rescale + weights
        acc = acc * rescale + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        row_max = new_max
    row_sum = tl.sum(weight_sums, 1)
    if split == 0:  # the new token, which sees itself; last, so that no load of the past waits
        new_position = tl.load(table_ptr + kv_len // PAGE) + in_page + kv_len % PAGE * HEAD_SIZE
        tl.store(keys_ptr + new_position + d[None, :], k_new, mask=d_mask[None, :])
        tl.store(values_ptr + new_position + d, v_new, mask=d_mask)
        products = tl.sum(q.to(tl.float32) * k_new.to(tl.float32), 1)
        scores = _scores(products, scale, softcap, HAS_SOFTCAP)
        new_max = tl.maximum(row_max, scores)
        weights, rescale = tl.exp2(scores - new_max), tl.exp2(row_max - new_max)
        row_sum = row_sum * rescale + weights
        acc = acc * rescale[:, None] + weights[:, None] * v_new.to(tl.float32)[None, :]
        row_max = new_max

    out = out_ptr + (row * kv_heads * QUERIES_PER_KV + heads[:, None]) * HEAD_SIZE + d[None, :]
    if used_splits == 1:
        tl.store(out, acc / row_sum[:, None], mask=q_mask)
        return
    pair = row * kv_heads + head
    stats = stats_ptr + pair * splits * 2 * M + m
    parts = parts_ptr + pair * splits * M * D + m[:, None] * D + d[None, :]
    tl.store(stats + split * 2 * M, row_max)
    tl.store(stats + split * 2 * M + M, row_sum)
    tl.store(parts + split * M * D, acc, mask=q_mask)
    tl.debug_barrier()  # all threads have stored before one of them says so
    if tl.atomic_add(arrived_ptr + pair, 1, sem="acq_rel") == used_splits - 1:
        _merge(out, parts, stats, used_splits, q_mask, M, D)
        tl.store(arrived_ptr + pair, 0)


@triton.jit
def _pages(table_ptr, tile, table_width, PAGE: tl.constexpr, N: tl.constexpr):
    """Where the pages of a tile's tokens start. A tile ahead, since loads wait for these."""
    if N <= PAGE:  # noqa: SIM108
        page = tile * N // PAGE
    else:
        page = (tile * N + tl.arange(0, N)) // PAGE
    return tl.multiple_of(tl.load(table_ptr + page, mask=page < table_width, other=0), 16)


@triton.jit
def _merge(out, parts, stats, used_splits, q_mask, M: tl.constexpr, D: tl.constexpr):
    """Add up what the splits found, first to last. Other programs' parts are in L2, not in L1."""
    row_max = tl.full([M], float("-inf"), tl.float32)
    row_sum = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for first in range(0, used_splits, MERGED_TOGETHER):
        for n in tl.static_range(MERGED_TOGETHER):
            split = first + n
            inside = split < used_splits
            seen = inside & q_mask
            part_max = tl.load(
                stats + split * 2 * M, mask=inside, other=float("-inf"), cache_modifier=".cg"
            )
            part_sum = tl.load(
                stats + split * 2 * M + M, mask=inside, other=0.0, cache_modifier=".cg"
            )
            part = tl.load(parts + split * M * D, mask=seen, other=0.0, cache_modifier=".cg")
            new_max = tl.maximum(row_max, part_max)
            rescale, weight = tl.exp2(row_max - new_max), tl.exp2(part_max - new_max)
            row_sum = row_sum * rescale + part_sum * weight
            acc = acc * rescale[:, None] + part * weight[:, None]
            row_max = new_max
    tl.store(out, acc / row_sum[:, None], mask=q_mask)


@torch.library.custom_op("groupwise::decode_attention", mutates_args=("keys", "values"))
def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    kv_lens: Tensor,
    scale: float,
    window: int,
    softcap: float,
) -> Tensor:
    """(n, H, 1, D) queries, (n, K, 1, D) new keys and values to (n, 1, H, D).

    `keys` and `values` are a layer's (pages, K, page size, D). Row i has `kv_lens[i]` tokens in the
    pages that start `page_table[i]` elements after those tensors' first one: a multiple of 16, and
    not necessarily inside of them. A window or soft cap of 0 is none.
    """
    splits = splits_of(q, k, keys, page_table)
    return launch(q, k, v, keys, values, page_table, kv_lens, scale, window, softcap, splits)


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    kv_lens: Tensor,
    scale: float,
    window: int,
    softcap: float,
    splits: int,
    min_split: int = MIN_SPLIT,
    rotary: tuple[Tensor, Tensor] | None = None,
    norms: HeadNorms | None = None,
    dependent: bool = False,
) -> Tensor:
    """`decode_attention` with the past split into at most `splits` parts.

    `rotary`: (n, D) cosines and sines for queries and keys that are without positions, `norms`:
    what these get before that. `dependent`: it may start while the kernel before it ends
    (programmatic dependent launch).
    """
    rows, heads, _, size = q.shape
    kv_heads, page = keys.shape[1:3]
    assert keys.is_contiguous() and values.is_contiguous() and keys.shape == values.shape
    assert page_table.stride(1) == 1 and kv_lens.is_contiguous()
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out = torch.empty(rows, 1, heads, size, dtype=q.dtype, device=q.device)
    m, d = max(16, triton.next_power_of_2(heads // kv_heads)), max(16, triton.next_power_of_2(size))
    tile = tile_size(size * q.element_size())
    count = rows * kv_heads * splits if splits > 1 else 0
    parts = torch.empty(count * m * d, dtype=torch.float32, device=q.device)
    stats = torch.empty(count * 2 * m, dtype=torch.float32, device=q.device)
    arrival, dependent = arrival_counters(q.device), dependent and overlaps_launches(q.device)
    assert splits == 1 or rows * kv_heads <= len(arrival)
    cos, sin = rotary or (out, out)
    q_norm, k_norm, eps = (norms.query, norms.key, norms.eps) if norms else (out, out, 0.0)
    assert norms is None or rotary is not None
    kernel: Any = _decode_attention  # called as kernel[grid](...), which its type does not know
    kernel[rows, kv_heads, splits](
        q, k, v, cos, sin, q_norm, k_norm, keys, values, page_table, kv_lens, out, parts, stats,
        arrival, scale, softcap, eps, window,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        cos.stride(0), page_table.stride(0), page_table.shape[1],
        QUERIES_PER_KV=heads // kv_heads, HEAD_SIZE=size, PAGE=page,
        M=m, N=tile, D=d, MIN_TILES=max(min_split // tile, 1),
        HAS_WINDOW=window > 0, HAS_SOFTCAP=softcap > 0,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        HAS_ROTARY=rotary is not None, HAS_NORM=norms is not None,
        DEPENDENT=dependent, launch_pdl=dependent,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


@decode_attention.register_fake
def _(q: Tensor, *_: Any) -> Tensor:
    rows, heads, size = q.shape[0], q.shape[1], q.shape[3]
    return q.new_empty(rows, 1, heads, size)


def tile_size(head_bytes: int) -> int:
    """Positions of the past that are attended to together."""
    return max(16, min(64, TILE_BYTES // triton.next_power_of_2(head_bytes)))


def splits_of(q: Tensor, k: Tensor, keys: Tensor, page_table: Tensor) -> int:
    longest, head_bytes = page_table.shape[1] * keys.shape[2], q.shape[3] * q.element_size()
    return split_count(q.shape[0] * k.shape[1], longest, head_bytes, q.device)


def split_count(pairs: int, longest: int, head_bytes: int, device: torch.device) -> int:
    """Into how many parts to split pasts of up to `longest` tokens: the same for every row.

    There is a program for each pair of row and key head, and each split of its past. All of them
    run at once: a few more than there is room for would take as long as twice as many.
    """
    per_sm = PROGRAM_BYTES // (2 * tile_size(head_bytes) * head_bytes)
    at_once = max(per_sm, 1) * multiprocessors(device)
    return max(1, min(at_once // pairs, -(-longest // MIN_SPLIT), MAX_SPLITS))
