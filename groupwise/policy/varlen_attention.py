"""FlashAttention over packed prompts and answers in one varlen call, forward and backward.

A prompt's keys are gathered once for each of its answers, as varlen kernels want each sequence's
keys in one piece. They are not kept that way for the backward pass, which gathers them again.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.batch import copied_to
from groupwise.compat.torch_attention import varlen_backward, varlen_forward
from groupwise.policy.attention import AttentionOptions


class VarlenSequences:
    """Where each sequence's queries and keys begin (cu_seqlens), and which tokens its keys are of.

    Keys of tokens 0 1 2 for a prompt and 0 1 2 3 4 for its answer: cu_seqlens_k is 0 3 8.
    """

    def __init__(
        self, seqlens_q: Sequence[int], kv_index: Sequence[np.ndarray], device: torch.device
    ) -> None:
        seqlens_k = [len(index) for index in kv_index]
        self.kv_index = copied_to(torch.from_numpy(np.concatenate(kv_index)), device)
        self.cu_seqlens_q, self.cu_seqlens_k = (
            copied_to(torch.tensor([0, *accumulate(seqlens)], dtype=torch.int32), device)
            for seqlens in (seqlens_q, seqlens_k)
        )
        self.max_seqlens = torch.tensor([max(seqlens_q), max(seqlens_k)])
        """On the CPU, and a tensor: as numbers they would be constants of compiled code."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
        """(Q, H, D) queries and (N, K, D) keys and values to (1, Q, H, D)."""
        out, _ = varlen_attention(
            q, k, v, self.kv_index, self.cu_seqlens_q, self.cu_seqlens_k, self.max_seqlens,
            options.scale, options.sliding_window or 0,
        )  # fmt: skip
        return out[None]


def flash_supports(q: Tensor, options: AttentionOptions) -> bool:
    """bf16 or fp16 on CUDA, head sizes that the kernel has, no soft cap."""
    half = q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)
    return half and options.softcap is None and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256


@torch.library.custom_op("groupwise::varlen_attention", mutates_args=())
def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_index: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlens: Tensor,
    scale: float,
    window: int,
) -> tuple[Tensor, Tensor]:
    """(N, H, D) queries, (N, K, D) keys and values to (N, H, D), and the (H, N) log-sum-exp.

    Sequence i of the queries attends to its part of `kv_index`, and ends where that ends.
    """
    return varlen_forward(
        q.contiguous(), k[kv_index], v[kv_index],
        cu_seqlens_q, cu_seqlens_k, _pair(max_seqlens), scale, window,
    )  # fmt: skip


@varlen_attention.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    count, heads, size = q.shape
    return q.new_empty(count, heads, size), q.new_empty(heads, count, dtype=torch.float32)


@torch.library.custom_op("groupwise::varlen_attention_backward", mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    kv_index: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlens: Tensor,
    scale: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = varlen_backward(
        grad.contiguous(), q.contiguous(), k[kv_index], v[kv_index], out, lse,
        cu_seqlens_q, cu_seqlens_k, _pair(max_seqlens), scale, window,
    )  # fmt: skip

    def scattered(gathered: Tensor, like: Tensor) -> Tensor:
        """A prompt's gradient is the sum over all sequences that saw it, in float32."""
        total = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
        return total.index_add_(0, kv_index, gathered.float()).to(like.dtype)

    return dq, scattered(dk, k), scattered(dv, v)


@_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return dq, dk, dv


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, ctx.window = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, *sequences, out, lse = ctx.saved_tensors
    grads = _backward(grad, q, k, v, out, lse, *sequences, ctx.scale, ctx.window)
    return *grads, *(None,) * 6


varlen_attention.register_autograd(_gradients, setup_context=_save_for_backward)


def _pair(max_seqlens: Tensor) -> tuple[int, int]:
    max_q, max_k = max_seqlens.tolist()
    return max_q, max_k
