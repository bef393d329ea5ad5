"""Queries and keys in Triton kernels: their norms, where heads have such, and rotary positions."""

import triton
import triton.language as tl


@triton.jit
def load_rotary(cos_ptr, sin_ptr, HEAD_SIZE: tl.constexpr, D: tl.constexpr):
    """A token's (1, D) cosines, and its sines with the signs that halves of a head swap with."""
    d = tl.arange(0, D)
    d_mask = d < HEAD_SIZE
    cos = tl.load(cos_ptr + d, mask=d_mask, other=0.0)
    sin = tl.load(sin_ptr + d, mask=d_mask, other=0.0)
    return cos[None, :], tl.where(d < HEAD_SIZE // 2, -sin, sin)[None, :]


@triton.jit
def load_heads(
    head_ptrs, mask, cos, sin, norm_ptr, eps,
    HEAD_SIZE: tl.constexpr, D: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Numbers (M, D) of a token's heads, which begin at (M, 1) `head_ptrs`, with their positions.

    Rounded where separate operations would round.
    """
    d = tl.arange(0, D)
    partner = tl.where(d < HEAD_SIZE // 2, d + HEAD_SIZE // 2, d - HEAD_SIZE // 2)
    x = tl.load(head_ptrs + d[None, :], mask=mask, other=0.0)
    other = tl.load(head_ptrs + partner[None, :], mask=mask, other=0.0)
    if HAS_NORM:
        wide = x.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, 1) / HEAD_SIZE + eps)[:, None]
        inside = d < HEAD_SIZE
        other = _normed(other, scale, tl.load(norm_ptr + partner, mask=inside, other=0.0))
        x = _normed(x, scale, tl.load(norm_ptr + d, mask=inside, other=0.0))
    wide = x.to(tl.float32) * cos.to(tl.float32) + other.to(tl.float32) * sin.to(tl.float32)
    return wide.to(x.dtype)


@triton.jit
def _normed(x, scale, weight):
    normed = (x.to(tl.float32) * scale).to(x.dtype)
    return (normed.to(tl.float32) * weight.to(tl.float32)[None, :]).to(x.dtype)
