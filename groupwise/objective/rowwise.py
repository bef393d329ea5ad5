"""Log-probs and entropies from logits, a few rows at a time, with a gradient of their own.

Written as tensor operations on all rows, softmax, entropy and their gradient read and write the
whole of the logits a dozen times. A few rows at a time those passes stay in the cache: each logit
comes from memory once forward and once backward, and nothing of their size is kept beside them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CACHED = 2**19
"""Logits that are worked on at once on a CPU: 2 MB in float32."""

Temperature = float | Tensor
"""One temperature for all rows, or one for each of them."""


def logprobs_by_rows(
    logits_CV: Tensor, targets_C: Tensor, temperature: Temperature
) -> tuple[Tensor, Tensor]:
    """(C) log-probs at the targets, and (C) entropies, which have no gradient."""
    return _RowLogprobs.apply(logits_CV, targets_C, temperature)  # pyright: ignore[reportReturnType]


class _RowLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_CV: Tensor, targets_C: Tensor, temperature: Temperature
    ) -> tuple[Tensor, Tensor]:
        kind = torch.promote_types(logits_CV.dtype, torch.float32)
        logprobs_C = logits_CV.new_empty(len(targets_C), dtype=kind)
        entropies_C, log_sums_C = torch.empty_like(logprobs_C), torch.empty_like(logprobs_C)
        for part, x in _parts(logits_CV, temperature):
            top = x.amax(-1, keepdim=True)
            x = x - top
            weights = x.exp()
            total = weights.sum(-1)
            logprobs_C[part] = x.gather(-1, targets_C[part, None]).squeeze(-1) - total.log()
            entropies_C[part] = total.log() - weights.mul_(x).sum(-1) / total
            log_sums_C[part] = top.squeeze(-1) + total.log()
        ctx.save_for_backward(logits_CV, targets_C, log_sums_C)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies_C)
        return logprobs_C, entropies_C

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_C: Tensor, _: Tensor
    ) -> tuple[Tensor, None, None]:
        logits_CV, targets_C, log_sums_C = ctx.saved_tensors
        given = grad_C / ctx.temperature
        result = torch.empty_like(logits_CV)
        for part, x in _parts(logits_CV, ctx.temperature):
            slope = (x - log_sums_C[part, None]).exp_().mul_(-given[part, None])
            slope.scatter_add_(-1, targets_C[part, None], given[part, None].to(slope.dtype))
            result[part] = slope
        return result, None, None


def row_parts(logits_CV: Tensor) -> list[slice]:
    """Rows that are worked on together: on a CPU as many as its cache holds, else all."""
    count, vocab = logits_CV.shape
    rows = max(1, CACHED // vocab) if logits_CV.device.type == "cpu" else max(count, 1)
    return [slice(start, start + rows) for start in range(0, count, rows)]


def _parts(logits_CV: Tensor, temperature: Temperature) -> Iterator[tuple[slice, Tensor]]:
    """Parts of the rows, at least in float32, divided by their temperature."""
    for part in row_parts(logits_CV):
        x = logits_CV[part]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        if isinstance(temperature, Tensor):
            x = x / temperature[part, None].to(x.dtype)
        elif temperature != 1:
            x = x / temperature
        yield part, x
