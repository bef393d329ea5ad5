"""FlashAttention over sequences of different lengths (varlen), forward and backward.

The forward pass is `torch.nn.attention.varlen.varlen_attn` where it takes a window and grouped
queries (torch 2.13 has both), else the operator that it calls. The backward pass has no public
function: autograd of `varlen_attn` would keep gathered keys and values from the forward pass.
"""

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def public_varlen_attn() -> Any:
    """torch's public function, or None where it lacks what we need of it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    needed = {"scale", "window_size", "enable_gqa", "return_aux"}
    return varlen_attn if needed <= set(inspect.signature(varlen_attn).parameters) else None


def varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlens: tuple[int, int],
    scale: float,
    window: int,
) -> tuple[Tensor, Tensor]:
    """Causal attention: (Q, H, D) queries and (N, K, D) keys and values to (Q, H, D) and the (H, Q)
    log-sum-exp. `window` counts the token itself; 0 is no window."""
    varlen_attn = public_varlen_attn()
    if varlen_attn is not None:
        from torch.nn.attention.varlen import AuxRequest

        return varlen_attn(
            q, k, v, cu_seqlens_q, cu_seqlens_k, *max_seqlens,
            scale=scale, window_size=(window - 1, 0), enable_gqa=q.shape[1] != k.shape[1],
            return_aux=AuxRequest(lse=True),
        )  # fmt: skip
    out, lse, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_seqlens_q, cu_seqlens_k, *max_seqlens,
        0.0, window == 0, False, scale=scale, **_edges(window),
    )  # fmt: skip
    return out, lse


def varlen_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlens: tuple[int, int],
    scale: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, from what `varlen_forward` took and gave."""
    no_dropout = torch.empty(0, dtype=torch.uint64, device=q.device)
    return torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *max_seqlens,
        0.0, window == 0, no_dropout, no_dropout, scale=scale, **_edges(window),
    )  # fmt: skip


def _edges(window: int) -> dict[str, int]:
    """A right edge of 0 is causal, without the causal flag."""
    return {"window_size_left": window - 1, "window_size_right": 0} if window else {}
