"""From logits to one token per row, and its log-prob under the distribution it came from."""

import torch
from torch import Tensor

from groupwise.objective.rowwise import row_parts
from groupwise.rollout.noise import gumbel
from groupwise.types import Sampling


def draw(
    logits_BV: Tensor, keys_B2: Tensor, positions_B: Tensor, sampling: Sampling, seen_BL: Tensor
) -> tuple[Tensor, Tensor]:
    """One token and its log-prob for each row. `seen_BL`: tokens so far, for repetition_penalty.

    On a CPU a few rows at a time, so that the passes over them stay in its cache.
    """
    if logits_BV.device.type == "cpu" and len(parts := row_parts(logits_BV)) > 1:
        found = [
            draw(logits_BV[p], keys_B2[p], positions_B[p], sampling, seen_BL[p]) for p in parts
        ]
        return torch.cat([tokens for tokens, _ in found]), torch.cat(
            [logprobs for _, logprobs in found]
        )
    scores = shape(logits_BV, sampling, seen_BL)
    logprobs = scores.log_softmax(-1)
    noisy = scores
    if sampling.temperature > 0:
        noisy = scores + gumbel(keys_B2, positions_B, scores.shape[-1])
    tokens = noisy.argmax(-1)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(-1)


def shape(logits_BV: Tensor, sampling: Sampling, seen_BL: Tensor) -> Tensor:
    """Logits after penalty, temperature and filters; what is filtered out becomes -inf."""
    scores = logits_BV.float()
    if sampling.repetition_penalty != 1:
        scores = penalize(scores, seen_BL, sampling.repetition_penalty)
    if sampling.temperature > 0 and sampling.temperature != 1:
        scores = scores / sampling.temperature
    if sampling.top_k:
        kept = scores.topk(min(sampling.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kept, -torch.inf)
    if sampling.min_p > 0:
        probabilities = scores.softmax(-1)
        floor = sampling.min_p * probabilities.amax(-1, keepdim=True)
        scores = scores.masked_fill(probabilities < floor, -torch.inf)
    if sampling.top_p < 1:
        ranked, order = scores.sort(dim=-1, descending=True)
        probabilities = ranked.softmax(-1)
        # A token stays when the mass of those above it has not yet reached top_p: the first always.
        outside = probabilities.cumsum(-1) - probabilities >= sampling.top_p
        scores = scores.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
    return scores


def spread_temperatures(count: int, low: float, high: float) -> tuple[float, ...]:
    """spread_temperatures(4, 0.7, 1.3) == (0.7, 0.9, 1.1, 1.3): evenly, from the lower one up."""
    assert 0 < low <= high
    steps = max(count - 1, 1)
    return tuple(round(low + (high - low) * i / steps, 6) for i in range(count))


def penalize(scores_BV: Tensor, seen_BL: Tensor, penalty: float) -> Tensor:
    """Make seen tokens less likely, whichever sign their logit has."""
    seen = scores_BV.gather(-1, seen_BL)
    return scores_BV.scatter(-1, seen_BL, torch.where(seen < 0, seen * penalty, seen / penalty))
