"""Corrections for answers that the policy, as it is now, would not have drawn; and token selection.

All of them weigh or drop the surrogate and leave the KL term alone. None carries a gradient.
"""

from typing import Literal

import torch
from torch import Tensor

from groupwise.objective.aggregate import answer_mean


@torch.no_grad()
def mismatch_ratio(
    old_logprobs_BT: Tensor,
    sampler_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    level: Literal["token", "sequence"],
    mode: Literal["truncate", "mask"],
    low: float,
    high: float,
) -> Tensor:
    """rho = pi_old / pi_sampler of each token, (B, T), or of the whole answer, (B, 1), bounded.

    The same weights give other probabilities in an inference engine (kernels, precision, sampling
    filters); rho makes the answers count as if the trainer had drawn them. `truncate` clamps rho
    into [low, high], `mask` puts 0 where it lies outside. Where the sampler's log-prob is NaN
    (an engine could not tell), rho is 1.
    """
    gap = (old_logprobs_BT - sampler_logprobs_BT).masked_fill(~mask_BT, 0.0).nan_to_num(nan=0.0)
    if level == "sequence":
        gap = gap.sum(-1, keepdim=True)
    rho = gap.exp()
    if mode == "truncate":
        rho = rho.clamp(low, high)
    else:
        rho = rho.masked_fill((rho < low) | (rho > high), 0.0)
    return rho.masked_fill(~mask_BT, 1.0) if level == "token" else rho


@torch.no_grad()
def on_policy_answers(
    logprobs_BT: Tensor,
    sampler_logprobs_BT: Tensor,
    mask_BT: Tensor,
    advantages: Tensor,
    limit: float,
) -> Tensor:
    """True except for answers of negative advantage that the policy has already moved away from:

    the mean of log pi_sampler - log pi over their tokens is above `limit`. Learning what not to do
    from answers that are no longer given destabilises; good answers are always kept.
    """
    moved_BT = (sampler_logprobs_BT - logprobs_BT).masked_fill(~mask_BT, 0.0).nan_to_num(nan=0.0)
    return (advantages >= 0) | (answer_mean(moved_BT, mask_BT) <= limit)


@torch.no_grad()
def entropy_threshold(entropies_K: Tensor, top: float) -> Tensor:
    """The entropy that the highest share `top` of tokens reach; keep those at or above it.

    Give it every token of the step, over all ranks: a threshold for each micro-batch would make the
    gradient depend on how the step is cut. Linear between neighbours, as torch.quantile, which
    however refuses more than 16 million values.
    """
    if entropies_K.numel() == 0:
        return torch.zeros((), dtype=entropies_K.dtype, device=entropies_K.device)
    ordered_K = entropies_K.sort().values
    position = (1 - top) * (ordered_K.numel() - 1)
    below = int(position)
    above = min(below + 1, ordered_K.numel() - 1)
    return torch.lerp(ordered_K[below], ordered_K[above], position - below)
