"""Ratios of probabilities: what the policy made of an answer, and what the sampler made of it.

Log ratios are clamped to +-20 before the exponential. No sound run comes near; past it, float32
overflows, and infinity times a clipped branch's zero gradient would be NaN.
"""

from typing import Literal

import torch
from torch import Tensor

from groupwise.objective.aggregate import answer_mean
from groupwise.objective.objective import Objective

LOG_RATIO_LIMIT = 20.0


def log_ratios(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log pi - log pi_old for each token; 0 where the mask is off, whatever is stored there."""
    difference_BT = (logprobs_BT - old_logprobs_BT).masked_fill(~mask_BT, 0.0)
    return difference_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def importance_ratio(
    log_ratio_BT: Tensor, mask_BT: Tensor, level: Literal["token", "sequence"]
) -> Tensor:
    """The ratio of each token, (B, T), or the geometric mean over an answer's tokens, (B, 1)."""
    return (log_ratio_BT if level == "token" else answer_mean(log_ratio_BT, mask_BT)).exp()


@torch.no_grad()
def mismatch_ratio(
    old_logprobs_BT: Tensor, sampler_logprobs_BT: Tensor, mask_BT: Tensor, objective: Objective
) -> Tensor:
    """rho = pi_old / pi_sampler of each token, (B, T), or of the whole answer, (B, 1), bounded.

    The same weights give other probabilities in an inference engine (kernels, precision, sampling
    filters); rho makes the answers count as if the trainer had drawn them. `truncate` clamps rho
    into its bounds, `mask` puts 0 where it lies outside. Where the sampler's log-prob is NaN
    (an engine could not tell), rho is 1.
    """
    low, high = objective.mismatch_min, objective.mismatch_max
    gap = (old_logprobs_BT - sampler_logprobs_BT).masked_fill(~mask_BT, 0.0).nan_to_num(nan=0.0)
    if objective.mismatch == "sequence":
        gap = gap.sum(-1, keepdim=True)
    rho = gap.exp()
    if objective.mismatch_mode == "truncate":
        rho = rho.clamp(low, high)
    else:
        rho = rho.masked_fill((rho < low) | (rho > high), 0.0)
    return rho.masked_fill(~mask_BT, 1.0) if objective.mismatch == "token" else rho


@torch.no_grad()
def off_policy_answers(
    logprobs_BT: Tensor,
    sampler_logprobs_BT: Tensor,
    mask_BT: Tensor,
    advantages: Tensor,
    limit: float,
) -> Tensor:
    """True for answers of negative advantage that the policy has already moved away from:

    the mean of log pi_sampler - log pi over their tokens is above `limit`. Learning what not to do
    from answers that are no longer given destabilises; good answers are always kept.
    """
    moved_BT = (sampler_logprobs_BT - logprobs_BT).masked_fill(~mask_BT, 0.0).nan_to_num(nan=0.0)
    return (advantages < 0) & (answer_mean(moved_BT, mask_BT) > limit)
