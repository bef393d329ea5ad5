"""The GRPO loss of one micro-batch. Everything about the algorithm that has a gradient is here.

    loss = aggregate( corrections * surrogate(ratio, advantage) + beta * KL ) - weight * entropy

Each word is a function in a file of that name; the objective's fields pick which one. Metrics come
as (sum, count) pairs of tensors, so that micro-batches and ranks reduce exactly: add the pairs,
then divide. They are means over sampled tokens (under a sequence ratio, a token has its answer's).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.batch import Batch
from groupwise.objective.aggregate import AGGREGATES
from groupwise.objective.corrections import mismatch_ratio, on_policy_answers
from groupwise.objective.entropy import mean_entropy
from groupwise.objective.kl import KL_ESTIMATORS
from groupwise.objective.objective import Objective
from groupwise.objective.ratios import importance_ratio, log_ratios
from groupwise.objective.surrogates import Terms

Metrics = dict[str, tuple[Tensor, Tensor]]
"""name -> (sum, count), both detached scalars."""


@dataclass(frozen=True)
class TokenLosses:
    """The loss of every token before it is aggregated, and what it is made of."""

    loss: Tensor
    """(B, T), or (B, 1) where it is the same for every token of an answer. KL is in it."""
    ratio: Tensor
    """(B, T) or (B, 1)."""
    kl_BT: Tensor | None
    metrics: Metrics


def policy_loss(
    logprobs_BT: Tensor,
    entropies_BT: Tensor | None,
    batch: Batch,
    objective: Objective,
    entropy_weight: float = 0.0,
) -> tuple[Tensor, Metrics]:
    """This micro-batch's share of the step's loss (the shares add up), and its metrics.

    Log-probs and entropies are of the policy that learns: the gradient flows through them.
    `entropy_weight` is passed in because it may adapt from step to step; see entropy.py.
    """
    mask_BT = batch.mask_BT
    each = token_losses(logprobs_BT, batch, objective)
    metrics = each.metrics
    loss = AGGREGATES[objective.aggregate](each.loss, mask_BT, batch.denominator)

    # Keep exploring.
    if entropies_BT is not None:
        entropies_BT = entropies_BT.masked_fill(~mask_BT, 0.0)
        metrics["entropy"] = _mean(entropies_BT, mask_BT)
        if entropy_weight != 0:
            bonus = mean_entropy(entropies_BT, mask_BT, batch.keep_BT, batch.denominator)
            loss = loss - entropy_weight * bonus
    else:
        assert entropy_weight == 0, "an entropy bonus needs entropies"

    return loss, metrics


def token_losses(logprobs_BT: Tensor, batch: Batch, objective: Objective) -> TokenLosses:
    """What each token adds before aggregation: the surrogate, its corrections, and KL."""
    mask_BT = batch.mask_BT
    logprobs_BT = logprobs_BT.masked_fill(~mask_BT, 0.0)
    old_logprobs_BT = (
        logprobs_BT.detach() if batch.old_logprobs_BT is None else batch.old_logprobs_BT
    )
    metrics: Metrics = {}

    # How far has the policy moved since it was sampled? On-policy the ratio is 1, with a gradient.
    log_ratio_BT = log_ratios(logprobs_BT, old_logprobs_BT, mask_BT)
    ratio = importance_ratio(log_ratio_BT, mask_BT, objective.ratio)
    metrics |= _ratio_metrics(ratio, batch, objective)

    # Make answers that beat their group more likely, the others less, within a trusted distance.
    rho = _mismatch(batch, old_logprobs_BT, objective, metrics)
    terms = Terms(logprobs_BT, log_ratio_BT, ratio, batch.advantages_BT, mask_BT, rho)
    loss_BT = objective.surrogate.loss(terms)

    # Weigh or drop what the present policy would not have sampled, or what it was sure of anyway.
    if rho is not None and not objective.surrogate.corrects_mismatch:
        loss_BT = loss_BT * rho
    if objective.off_policy_limit is not None:
        loss_BT = loss_BT * _still_on_policy(
            logprobs_BT, batch, old_logprobs_BT, objective.off_policy_limit, metrics
        )
    keep_BT = batch.keep_BT
    if keep_BT is not None:
        loss_BT = loss_BT * keep_BT

    # Stay near the reference.
    kl_BT = None
    if batch.ref_logprobs_BT is not None:
        ref_logprobs_BT = batch.ref_logprobs_BT.masked_fill(~mask_BT, 0.0)
        kl_BT = KL_ESTIMATORS[objective.kl_estimator](logprobs_BT, ref_logprobs_BT)
        metrics["kl"] = _mean(kl_BT, mask_BT)
        if objective.kl_in == "loss":
            weight = objective.kl_weight * ratio if objective.kl_unbiased else objective.kl_weight
            loss_BT = loss_BT + weight * kl_BT
    else:
        assert objective.kl_weight == 0 or objective.kl_in == "reward", "KL needs ref_logprobs_BT"

    return TokenLosses(loss_BT, ratio, kl_BT, metrics)


def _mismatch(
    batch: Batch, old_logprobs_BT: Tensor, objective: Objective, metrics: Metrics
) -> Tensor | None:
    """rho where the objective wants it; and how far sampler and trainer are apart, as metrics."""
    sampler_BT, mask_BT = batch.sampler_logprobs_BT, batch.mask_BT
    if sampler_BT is None:
        assert objective.mismatch == "none", "mismatch correction needs sampler_logprobs_BT"
        return None
    known_BT = mask_BT & ~sampler_BT.isnan()
    gap_BT = (old_logprobs_BT - sampler_BT).detach().abs().masked_fill(~known_BT, 0.0)
    metrics["sampler_gap"] = _mean(gap_BT, known_BT)
    if objective.mismatch == "none":
        return None
    rho = mismatch_ratio(
        old_logprobs_BT,
        sampler_BT,
        mask_BT,
        level=objective.mismatch,
        mode=objective.mismatch_mode,
        low=objective.mismatch_min,
        high=objective.mismatch_max,
    )
    metrics["mismatch"] = _mean(rho, mask_BT)
    return rho


def _still_on_policy(
    logprobs_BT: Tensor, batch: Batch, old_logprobs_BT: Tensor, limit: float, metrics: Metrics
) -> Tensor:
    sampler_BT = old_logprobs_BT if batch.sampler_logprobs_BT is None else batch.sampler_logprobs_BT
    keep = on_policy_answers(logprobs_BT, sampler_BT, batch.mask_BT, batch.advantages_BT, limit)
    metrics["off_policy"] = _mean(~keep, batch.mask_BT)
    return keep


@torch.no_grad()
def _ratio_metrics(ratio: Tensor, batch: Batch, objective: Objective) -> Metrics:
    metrics = {"ratio": _mean(ratio, batch.mask_BT)}
    outside = outside_clip_edges(ratio, batch.advantages_BT, objective)
    if outside is not None:
        too_low, too_high = outside
        metrics["clip_low"] = _mean(too_low, batch.mask_BT)
        metrics["clip_high"] = _mean(too_high, batch.mask_BT)
    return metrics


def outside_clip_edges(
    ratio: Tensor, advantages: Tensor, objective: Objective
) -> tuple[Tensor, Tensor] | None:
    """Where the ratio has passed an edge in the direction that the advantage pushes: low, high."""
    edges = objective.surrogate.clip_edges()
    if edges is None:
        return None
    return (ratio < edges[0]) & (advantages < 0), (ratio > edges[1]) & (advantages > 0)


def _mean(values: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    return (values.detach() * mask_BT).sum(), mask_BT.sum()
