"""Log-probabilities and entropies of sampled tokens, without ever holding all logits at once.

A step's logits (tokens x vocabulary) outgrow the model itself. Only two numbers per token are
needed from them, so the projection goes chunk by chunk, and each chunk's logits are recomputed in
the backward pass instead of being kept, except for as many as a large memory has room for. When all
of them fit the budget there is one chunk and nothing is computed twice. The numbers are the same
either way: no row of logits depends on its neighbours.

K tokens (of any answers, flat), H hidden size, V vocabulary. Logits must be finite.
"""

import importlib.util
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from groupwise.policy import limits

CACHED = 2**19
"""Logits that are worked on at once on a CPU: 2 MB in float32."""

ROWS = 128
"""A matrix product computes so many rows together: chunks are whole multiples."""

Temperature = float | Tensor
"""One temperature for all rows, or one for each of them."""


def token_logprobs(
    hidden_KH: Tensor,
    head: Callable[[Tensor], Tensor],
    targets_K: Tensor,
    temperature: Temperature,
    *,
    vocab: int,
    entropy_grad: bool = False,
    chunk_logits: int | None = None,
    kept_logits: int = 0,
) -> tuple[Tensor, Tensor]:
    """log softmax(head(hidden) / temperature) at the targets, and the entropies, (K) both.

    `entropy_grad` keeps the entropy in the graph, for a bonus; otherwise it is a detached metric.
    Half-precision logits are raised to float32 first; wider ones stay as they are. On CUDA a kernel
    does that on the way, so that float32 logits are never in memory. Of several chunks the first
    ones, `kept_logits` in all, are not computed again in the backward pass.
    """

    def chunk_logprobs(
        hidden_CH: Tensor, targets_C: Tensor, temperature: Temperature
    ) -> tuple[Tensor, Tensor]:
        logits_CV = head(hidden_CH)
        if _has_kernel(logits_CV):
            return _kernel_logprobs(logits_CV, targets_C, temperature, entropy_grad)
        if entropy_grad:
            return plain_logprobs(logits_CV, targets_C, temperature, entropy_grad)
        return logprobs_by_rows(logits_CV, targets_C, temperature)

    if chunk_logits is None:
        chunk_logits = limits.chunk_logits(device_memory(hidden_KH.device))
    rows = max(1, chunk_logits // vocab)
    rows -= rows % ROWS if rows > ROWS else 0
    if len(targets_K) <= rows:
        return chunk_logprobs(hidden_KH, targets_K, temperature)

    hidden, targets = hidden_KH.split(rows), targets_K.split(rows)
    each = isinstance(temperature, Tensor)
    temperatures = temperature.split(rows) if each else [temperature] * len(targets)
    chunks = zip(hidden, targets, temperatures, strict=True)
    if torch.is_grad_enabled():
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        again = partial(checkpoint, chunk_logprobs, **options)
        kept = kept_logits // (rows * vocab)
        parts = [(again if n >= kept else chunk_logprobs)(*c) for n, c in enumerate(chunks)]
    else:
        parts = [chunk_logprobs(*chunk) for chunk in chunks]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


@cache
def device_memory(device: torch.device) -> int | None:
    """Bytes of a GPU's memory; None for a CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.get_device_properties(device).total_memory


def plain_logprobs(
    logits_CV: Tensor, targets_C: Tensor, temperature: Temperature, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs at the targets, and entropies, of one chunk: as plainly as torch can say it."""
    all_logprobs_CV = _scaled(logits_CV, temperature).log_softmax(-1)
    logprobs_C = all_logprobs_CV.gather(-1, targets_C.unsqueeze(-1)).squeeze(-1)
    if not entropy_grad:
        all_logprobs_CV = all_logprobs_CV.detach()
    return logprobs_C, -(all_logprobs_CV.exp() * all_logprobs_CV).sum(-1)


def _has_kernel(logits_CV: Tensor) -> bool:
    known = logits_CV.is_cuda and logits_CV.dtype != torch.float64
    return known and importlib.util.find_spec("triton") is not None


def _kernel_logprobs(
    logits_CV: Tensor, targets_C: Tensor, temperature: Temperature, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    from groupwise.policy.logprob_kernel import KernelLogprobs

    if not isinstance(temperature, Tensor) and temperature != 1:
        temperature = torch.full(targets_C.shape, temperature, device=targets_C.device)
    own = temperature if isinstance(temperature, Tensor) else None
    return KernelLogprobs.apply(logits_CV, targets_C, own, entropy_grad)  # pyright: ignore[reportReturnType]


def _scaled(logits_CV: Tensor, temperature: Temperature) -> Tensor:
    """At least in float32, divided by the temperature."""
    if logits_CV.dtype in (torch.bfloat16, torch.float16):
        logits_CV = logits_CV.float()
    if isinstance(temperature, Tensor):
        return logits_CV / temperature[:, None].to(logits_CV.dtype)
    return logits_CV if temperature == 1 else logits_CV / temperature


def logprobs_by_rows(
    logits_CV: Tensor, targets_C: Tensor, temperature: Temperature
) -> tuple[Tensor, Tensor]:
    """(C) log-probs at the targets, and (C) entropies, which have no gradient.

    Written as tensor operations on all rows, softmax, entropy and their gradient read and write the
    whole of the logits a dozen times. A few rows at a time those passes stay in the cache: each
    logit comes from memory once forward and once backward, and nothing of their size is kept beside
    them.
    """
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
    for part in row_parts(logits_CV):
        own = temperature[part] if isinstance(temperature, Tensor) else temperature
        yield part, _scaled(logits_CV[part], own)
