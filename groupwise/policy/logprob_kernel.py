"""Log-probs of sampled tokens and entropies from logits in Triton: one pass forward, one backward.

A program goes through one row of logits and keeps a running maximum, the sum of exponentials, and
their mean for the entropy. Backward it reads the row once more and writes its gradient. Nothing
else of the logits' size is in memory.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 4096
"""Logits of a row that are looked at together."""
LOWEST = tl.constexpr(-1e30)
"""Below every logit; finite, so that differences are numbers."""


@triton.jit
def _forward(
    logits_ptr, targets_ptr, temperatures_ptr, logprobs_ptr, entropies_ptr, log_sums_ptr,
    vocab, logits_row, BLOCK: tl.constexpr, HAS_TEMPERATURE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_row
    scale = 1 / tl.load(temperatures_ptr + row) if HAS_TEMPERATURE else 1.0
    # Each column of the blocks has its own sums, relative to the largest logit it has seen.
    largest = tl.full([BLOCK], 2 * LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK], tl.float32)  # the sum of x * exp(x), x relative to the largest
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        loaded = tl.load(logits_ptr + token, mask=token < vocab, other=LOWEST)
        x = tl.where(token < vocab, loaded.to(tl.float32) * scale, LOWEST)
        above = x - largest
        # Either this logit or what came before is scaled down: one exponential does for both.
        smaller = tl.exp(-tl.abs(above))
        is_new = above > 0
        weighted = tl.where(
            is_new, (weighted - above * total) * smaller, weighted + above * smaller
        )
        total = tl.where(is_new, total * smaller + 1, total + smaller)
        largest = tl.maximum(largest, x)
    top = tl.max(largest, 0)
    shift = largest - top
    rescale = tl.exp(shift)
    weighted_sum = tl.sum((weighted + shift * total) * rescale, 0)
    sum_ = tl.sum(total * rescale, 0)
    log_sum = tl.log(sum_)
    target = tl.load(logits_ptr + tl.load(targets_ptr + row)).to(tl.float32) * scale
    tl.store(logprobs_ptr + row, target - top - log_sum)
    tl.store(entropies_ptr + row, log_sum - weighted_sum / sum_)
    tl.store(log_sums_ptr + row, top + log_sum)


@triton.jit
def _backward(
    logits_ptr, targets_ptr, temperatures_ptr, log_sums_ptr, entropies_ptr,
    logprob_grads_ptr, entropy_grads_ptr, out_ptr,
    vocab, logits_row, BLOCK: tl.constexpr, HAS_TEMPERATURE: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    scale = 1 / tl.load(temperatures_ptr + row) if HAS_TEMPERATURE else 1.0
    grad = tl.load(logprob_grads_ptr + row) * scale
    x = tl.load(logits_ptr + row * logits_row + token, mask=token < vocab, other=0.0)
    logprob = x.to(tl.float32) * scale - tl.load(log_sums_ptr + row)
    slope = tl.zeros([BLOCK], tl.float32) + grad
    if HAS_ENTROPY:
        entropy_grad = tl.load(entropy_grads_ptr + row) * scale
        slope += entropy_grad * (logprob + tl.load(entropies_ptr + row))
    out = -slope * tl.exp(logprob)
    out += tl.where(token == tl.load(targets_ptr + row), grad, 0.0)
    tl.store(out_ptr + row * vocab + token, out.to(x.dtype), mask=token < vocab)


class KernelLogprobs(torch.autograd.Function):
    """(C, V) logits, (C) targets and temperatures to (C) log-probs and (C) entropies."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_CV: Tensor,
        targets_C: Tensor,
        temperatures_C: Tensor | None,
        entropy_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        assert logits_CV.stride(1) == 1
        rows, vocab = logits_CV.shape
        logprobs_C, entropies_C, log_sums_C = torch.empty(3, rows, device=logits_CV.device)
        temperatures = targets_C if temperatures_C is None else temperatures_C.float()
        if rows:
            kernel: Any = _forward  # called as kernel[grid](...), which its type does not know
            kernel[rows,](
                logits_CV, targets_C, temperatures, logprobs_C, entropies_C, log_sums_C,
                vocab, logits_CV.stride(0), BLOCK=BLOCK, HAS_TEMPERATURE=temperatures_C is not None,
                num_warps=8,
            )  # fmt: skip
        saved = (logits_CV, targets_C, temperatures, log_sums_C, entropies_C)
        ctx.save_for_backward(*saved)
        ctx.has_temperature, ctx.entropy_grad = temperatures_C is not None, entropy_grad
        if not entropy_grad:
            ctx.mark_non_differentiable(entropies_C)
        return logprobs_C, entropies_C

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, logprob_grads_C: Tensor, entropy_grads_C: Tensor
    ) -> tuple[Tensor, None, None, None]:
        logits_CV, *rest = ctx.saved_tensors
        rows, vocab = logits_CV.shape
        out = torch.empty_like(logits_CV, memory_format=torch.contiguous_format)
        if rows:
            kernel: Any = _backward
            kernel[rows, triton.cdiv(vocab, BLOCK)](
                logits_CV, *rest, logprob_grads_C.contiguous(), entropy_grads_C.contiguous(), out,
                vocab, logits_CV.stride(0), BLOCK=BLOCK, HAS_TEMPERATURE=ctx.has_temperature,
                HAS_ENTROPY=ctx.entropy_grad, num_warps=8,
            )  # fmt: skip
        return out, None, None, None
