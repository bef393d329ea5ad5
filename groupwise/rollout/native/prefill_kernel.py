"""What stands between a prefill's qkv projection and its attention, as one Triton kernel.

Queries and keys get their norms, where there are such, and rotary positions, and keys and values go
to their pages. Of the model's own operations these are some twenty, which take longer to launch
than to compute where prompts are short and the model is small.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from groupwise.rollout.native.llama_layer import HeadNorms
from groupwise.rollout.native.rotary_kernel import load_heads, load_rotary


@triton.jit
def _place(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, starts_ptr, keys_ptr, values_ptr,
    q_out_ptr, k_out_ptr, v_out_ptr,
    q_row, k_row, v_row, q_head, k_head, v_head, rotary_row, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, PAGE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """A token: all of its heads."""
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, D)[None, :]
    rotary = row * rotary_row
    cos, sin = load_rotary(cos_ptr + rotary, sin_ptr + rotary, HEAD_SIZE, D)
    m = tl.arange(0, M)[:, None]
    mask = (m < HEADS) & (d < HEAD_SIZE)
    heads = q_ptr + row * q_row + m * q_head
    q = load_heads(heads, mask, cos, sin, q_norm_ptr, eps, HEAD_SIZE, D, HAS_NORM)
    tl.store(q_out_ptr + (row * HEADS + m) * HEAD_SIZE + d, q, mask=mask)

    n = tl.arange(0, N)[:, None]
    mask = (n < KV_HEADS) & (d < HEAD_SIZE)
    heads = k_ptr + row * k_row + n * k_head
    k = load_heads(heads, mask, cos, sin, k_norm_ptr, eps, HEAD_SIZE, D, HAS_NORM)
    v = tl.load(v_ptr + row * v_row + n * v_head + d, mask=mask, other=0.0)
    out = (row * KV_HEADS + n) * HEAD_SIZE + d
    tl.store(k_out_ptr + out, k, mask=mask)
    tl.store(v_out_ptr + out, v, mask=mask)
    in_cache = tl.load(starts_ptr + row) + n * PAGE * HEAD_SIZE + d
    tl.store(keys_ptr + in_cache, k, mask=mask)
    tl.store(values_ptr + in_cache, v, mask=mask)


def place(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    starts: Tensor,
    norms: HeadNorms | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(T, H, D) queries and (T, K, D) keys, with their positions, and (T, K, D) values, contiguous.
    Queries and keys get their `norms` before that.

    `keys` and `values` are a layer's (pages, K, page size, D). Token i goes to `starts[i]` elements
    after those tensors' first one, and as much further for each head as a page of a head is long.
    """
    (rows, heads, size), (kv_heads, page) = q.shape, keys.shape[1:3]
    out = torch.empty(rows * (heads + 2 * kv_heads) * size, dtype=q.dtype, device=q.device)
    q_out, k_out, v_out = (
        part.view(rows, -1, size)
        for part in out.split([rows * each * size for each in (heads, kv_heads, kv_heads)])
    )
    cos, sin = rotary
    assert q.stride(2) == k.stride(2) == v.stride(2) == cos.stride(1) == sin.stride(1) == 1
    assert cos.stride(0) == sin.stride(0)
    q_norm, k_norm, eps = (norms.query, norms.key, norms.eps) if norms else (out, out, 0.0)
    kernel: Any = _place  # called as kernel[grid](...), which its type does not know
    kernel[rows,](
        q, k, v, cos, sin, q_norm, k_norm, starts, keys, values, q_out, k_out, v_out,
        q.stride(0), k.stride(0), v.stride(0), q.stride(1), k.stride(1), v.stride(1), cos.stride(0),
        eps,
        HEADS=heads, KV_HEADS=kv_heads, HEAD_SIZE=size, PAGE=page,
        M=triton.next_power_of_2(heads), N=triton.next_power_of_2(kv_heads),
        D=triton.next_power_of_2(size), HAS_NORM=norms is not None, num_warps=4,
    )  # fmt: skip
    return q_out, k_out, v_out
