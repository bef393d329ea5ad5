"""From logits to one token per row, and its log-prob under the distribution it came from."""

import importlib.util

import torch
from torch import Tensor

from groupwise.policy.token_logprobs import row_parts
from groupwise.rollout.cpu_kernels import compiled_kernels, draw_tokens
from groupwise.rollout.noise import gumbel
from groupwise.types import Sampling

HAS_KERNEL = torch.version.cuda is not None and importlib.util.find_spec("triton") is not None
if HAS_KERNEL:
    importlib.import_module("groupwise.rollout.sample_kernel")


def sample_tokens(
    logits_BV: Tensor, keys_B2: Tensor, positions_B: Tensor, sampling: Sampling, seen_BL: Tensor
) -> tuple[Tensor, Tensor]:
    """One token and its log-prob for each row. `seen_BL`: tokens so far, for repetition_penalty.

    On a CPU without kernels of our own a few rows at a time: passes over them stay in its cache.
    """
    if _takes_cpu_kernel(logits_BV, sampling):
        return draw_tokens(logits_BV.float(), keys_B2, positions_B, float(sampling.temperature))
    if logits_BV.device.type == "cpu" and len(parts := row_parts(logits_BV)) > 1:
        sampled = [
            sample_tokens(logits_BV[p], keys_B2[p], positions_B[p], sampling, seen_BL[p])
            for p in parts
        ]
        tokens, logprobs = zip(*sampled, strict=True)
        return torch.cat(tokens), torch.cat(logprobs)
    if has_kernel(logits_BV, sampling):
        temperature = float(sampling.temperature)
        return torch.ops.groupwise.sample_tokens(logits_BV, keys_B2, positions_B, temperature)
    logits = process_logits(logits_BV, sampling, seen_BL)
    logprobs = logits.log_softmax(-1)
    noisy = logits
    if sampling.temperature > 0:
        noisy = logits + gumbel(keys_B2, positions_B, logits.shape[-1])
    tokens = noisy.argmax(-1)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)


def has_kernel(logits_BV: Tensor, sampling: Sampling) -> bool:
    """Whether sample_kernel.py draws these tokens."""
    return HAS_KERNEL and logits_BV.device.type == "cuda" and keeps_all_tokens(sampling)


def _takes_cpu_kernel(logits_BV: Tensor, sampling: Sampling) -> bool:
    return (
        logits_BV.device.type == "cpu"
        and keeps_all_tokens(sampling)
        and compiled_kernels() is not None
    )


def keeps_all_tokens(sampling: Sampling) -> bool:
    """Whether tokens are drawn from the softmax of logits / temperature as it is."""
    filters = sampling.top_k or sampling.min_p > 0 or sampling.top_p < 1
    return not filters and sampling.repetition_penalty == 1


def process_logits(logits_BV: Tensor, sampling: Sampling, seen_BL: Tensor) -> Tensor:
    """Logits after penalty, temperature and filters; what is filtered out becomes -inf."""
    logits = logits_BV.float()
    if sampling.repetition_penalty != 1:
        logits = penalize(logits, seen_BL, sampling.repetition_penalty)
    if sampling.temperature > 0 and sampling.temperature != 1:
        logits = logits / sampling.temperature
    if sampling.top_k:
        kept = logits.topk(min(sampling.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kept, -torch.inf)
    if sampling.min_p > 0:
        probabilities = logits.softmax(-1)
        floor = sampling.min_p * probabilities.amax(-1, keepdim=True)
        logits = logits.masked_fill(probabilities < floor, -torch.inf)
    if sampling.top_p < 1:
        ranked, order = logits.sort(dim=-1, descending=True)
        probabilities = ranked.softmax(-1)
        # A token stays when the mass of those above it has not yet reached top_p: the first always.
        outside = probabilities.cumsum(-1) - probabilities >= sampling.top_p
        logits = logits.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
    return logits


def spread_temperatures(count: int, low: float, high: float) -> tuple[float, ...]:
    """spread_temperatures(4, 0.7, 1.3) == (0.7, 0.9, 1.1, 1.3): evenly, from the lower one up."""
    assert 0 < low <= high
    steps = max(count - 1, 1)
    return tuple(round(low + (high - low) * i / steps, 6) for i in range(count))


def penalize(logits_BV: Tensor, seen_BL: Tensor, penalty: float) -> Tensor:
    """Make seen tokens less likely, whichever sign their logit has."""
    seen = logits_BV.gather(-1, seen_BL)
    return logits_BV.scatter(-1, seen_BL, torch.where(seen < 0, seen * penalty, seen / penalty))
