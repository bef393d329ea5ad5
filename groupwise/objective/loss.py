"""The GRPO loss of one micro-batch. Everything about the algorithm that has a gradient is here.

    loss = aggregate( corrections * surrogate(ratio, advantage) + beta * KL ) - weight * entropy

Each word is a function in a file of that name; the objective's fields pick which one. Metrics come
as (sum, count) pairs of tensors, so that micro-batches and ranks reduce exactly: add the pairs,
then divide. They are means over sampled tokens (under a sequence ratio, a token has its answer's).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.objective.aggregate import AGGREGATES, Denominator
from groupwise.objective.corrections import mismatch_ratio, on_policy_answers
from groupwise.objective.entropy import mean_entropy
from groupwise.objective.kl import KL_ESTIMATORS
from groupwise.objective.presets import Objective
from groupwise.objective.ratios import importance_ratio, log_ratios
from groupwise.objective.surrogates import SURROGATES, Terms, trust_region

Metrics = dict[str, tuple[Tensor, Tensor]]
"""name -> (sum, count), both detached scalars."""


@dataclass(frozen=True)
class Tokens:
    """One micro-batch: B answers padded to T tokens. Log-probs stored in the padding never matter.

    Log-probs are of the token that was sampled, under logits / temperature.
    """

    logprobs_BT: Tensor
    """Under the policy that learns; the gradient flows through these (and entropies)."""
    mask_BT: Tensor
    """bool: tokens that the policy sampled and that count."""
    advantages_BT: Tensor
    """(B, 1), or (B, T) for credit by token."""
    old_logprobs_BT: Tensor | None = None
    """Under the policy before the step's first update. None: this is the first, so the same."""
    sampler_logprobs_BT: Tensor | None = None
    """What the engine that sampled reported."""
    ref_logprobs_BT: Tensor | None = None
    """Under the reference, for KL."""
    entropies_BT: Tensor | None = None
    """Of the policy's whole distribution at each token."""
    keep_BT: Tensor | None = None
    """bool: tokens that `top_entropy` lets carry policy loss. None: all."""


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
    tokens: Tokens, objective: Objective, denominator: Denominator, entropy_weight: float = 0.0
) -> tuple[Tensor, Metrics]:
    """This micro-batch's share of the step's loss (the shares add up), and its metrics.

    `entropy_weight` is passed in because it may adapt from step to step; see entropy.py.
    """
    mask_BT = tokens.mask_BT
    each = token_losses(tokens, objective)
    metrics = each.metrics
    loss = AGGREGATES[objective.aggregate](each.loss, mask_BT, denominator)

    # Keep exploring.
    if tokens.entropies_BT is not None:
        entropies_BT = tokens.entropies_BT.masked_fill(~mask_BT, 0.0)
        metrics["entropy"] = _mean(entropies_BT, mask_BT)
        if entropy_weight != 0:
            bonus = mean_entropy(entropies_BT, mask_BT, tokens.keep_BT, denominator)
            loss = loss - entropy_weight * bonus
    else:
        assert entropy_weight == 0, "an entropy bonus needs entropies_BT"

    return loss, metrics


def token_losses(tokens: Tokens, objective: Objective) -> TokenLosses:
    """What each token adds before aggregation: the surrogate, its corrections, and KL."""
    mask_BT = tokens.mask_BT
    logprobs_BT = tokens.logprobs_BT.masked_fill(~mask_BT, 0.0)
    old_logprobs_BT = (
        logprobs_BT.detach() if tokens.old_logprobs_BT is None else tokens.old_logprobs_BT
    )
    metrics: Metrics = {}

    # How far has the policy moved since it was sampled? On-policy the ratio is 1, with a gradient.
    log_ratio_BT = log_ratios(logprobs_BT, old_logprobs_BT, mask_BT)
    ratio = importance_ratio(log_ratio_BT, mask_BT, objective.ratio)
    metrics |= _ratio_metrics(ratio, tokens, objective)

    # Make answers that beat their group more likely, the others less, within a trusted distance.
    rho = _mismatch(tokens, old_logprobs_BT, objective, metrics)
    terms = Terms(logprobs_BT, log_ratio_BT, ratio, tokens.advantages_BT, mask_BT, rho)
    loss_BT = SURROGATES[objective.surrogate](terms, objective)

    # Weigh or drop what the present policy would not have sampled, or what it was sure of anyway.
    if rho is not None and objective.surrogate != "vespo":
        loss_BT = loss_BT * rho
    if objective.off_policy_limit is not None:
        loss_BT = loss_BT * _still_on_policy(
            tokens, old_logprobs_BT, objective.off_policy_limit, metrics
        )
    if tokens.keep_BT is not None:
        loss_BT = loss_BT * tokens.keep_BT

    # Stay near the reference.
    kl_BT = None
    if tokens.ref_logprobs_BT is not None:
        ref_logprobs_BT = tokens.ref_logprobs_BT.masked_fill(~mask_BT, 0.0)
        kl_BT = KL_ESTIMATORS[objective.kl_estimator](logprobs_BT, ref_logprobs_BT)
        metrics["kl"] = _mean(kl_BT, mask_BT)
        if objective.kl_in == "loss":
            weight = objective.kl_weight * ratio if objective.kl_unbiased else objective.kl_weight
            loss_BT = loss_BT + weight * kl_BT
    else:
        assert objective.kl_weight == 0 or objective.kl_in == "reward", "KL needs ref_logprobs_BT"

    return TokenLosses(loss_BT, ratio, kl_BT, metrics)


def _mismatch(
    tokens: Tokens, old_logprobs_BT: Tensor, objective: Objective, metrics: Metrics
) -> Tensor | None:
    """rho where the objective wants it; and how far sampler and trainer are apart, as metrics."""
    sampler_BT, mask_BT = tokens.sampler_logprobs_BT, tokens.mask_BT
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
    tokens: Tokens, old_logprobs_BT: Tensor, limit: float, metrics: Metrics
) -> Tensor:
    sampler_BT = (
        old_logprobs_BT if tokens.sampler_logprobs_BT is None else tokens.sampler_logprobs_BT
    )
    keep = on_policy_answers(
        tokens.logprobs_BT, sampler_BT, tokens.mask_BT, tokens.advantages_BT, limit
    )
    metrics["off_policy"] = _mean(~keep, tokens.mask_BT)
    return keep


@torch.no_grad()
def _ratio_metrics(ratio: Tensor, tokens: Tokens, objective: Objective) -> Metrics:
    metrics = {"ratio": _mean(ratio, tokens.mask_BT)}
    outside = outside_trust(ratio, tokens.advantages_BT, objective)
    if outside is not None:
        too_low, too_high = outside
        metrics["clip_low"] = _mean(too_low, tokens.mask_BT)
        metrics["clip_high"] = _mean(too_high, tokens.mask_BT)
    return metrics


def outside_trust(
    ratio: Tensor, advantages: Tensor, objective: Objective
) -> tuple[Tensor, Tensor] | None:
    """Where the ratio has passed an edge in the direction that the advantage pushes: low, high."""
    edges = trust_region(objective)
    if edges is None:
        return None
    return (ratio < edges[0]) & (advantages < 0), (ratio > edges[1]) & (advantages > 0)


def _mean(values: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    return (values.detach() * mask_BT).sum(), mask_BT.sum()
