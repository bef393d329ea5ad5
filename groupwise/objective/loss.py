"""The GRPO loss of one micro-batch. Everything about the algorithm that has a gradient is here.

    loss = aggregate( corrections * surrogate(ratio, advantage) + beta * KL ) - weight * entropy

Each word is a function in a file of that name; the objective's fields pick which one. Metrics come
as (sum, count) pairs of tensors, so that micro-batches and ranks reduce exactly: add the pairs,
then divide. They are means over sampled tokens (under a sequence ratio, a token has its answer's).
"""

from dataclasses import dataclass

from torch import Tensor

from groupwise.batch import Batch
from groupwise.objective.aggregate import AGGREGATES
from groupwise.objective.entropy import mean_entropy
from groupwise.objective.kl import KL_ESTIMATORS
from groupwise.objective.objective import Objective
from groupwise.objective.ratios import (
    importance_ratio,
    log_ratios,
    mismatch_ratio,
    off_policy_answers,
)
from groupwise.objective.surrogates import Terms

Metrics = dict[str, tuple[Tensor, Tensor]]
"""name -> (sum, count), both detached scalars."""


@dataclass(frozen=True)
class TokenLosses:
    """The loss of every token before it is aggregated, and what it is made of.

    Shapes are (B, T), or (B, 1) where a value is the same for every token of an answer.
    """

    loss: Tensor
    """KL is in it."""
    ratio: Tensor
    kl_BT: Tensor | None
    rho: Tensor | None
    off_policy: Tensor | None


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
    metrics = _metrics(each, logprobs_BT, batch, objective)
    loss = aggregated(each.loss, batch, objective)

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


def aggregated(token_loss: Tensor, batch: Batch, objective: Objective) -> Tensor:
    """One number from the losses of tokens: the lines of a split episode add up to one mean."""
    if batch.share_BT is not None and objective.aggregate == "sequence_mean":
        token_loss = token_loss * batch.share_BT
    return AGGREGATES[objective.aggregate](token_loss, batch.mask_BT, batch.denominator)


def token_losses(logprobs_BT: Tensor, batch: Batch, objective: Objective) -> TokenLosses:
    """What each token adds before aggregation: the surrogate, its corrections, and KL."""
    mask_BT, advantages_BT = batch.mask_BT, batch.advantages_BT
    logprobs_BT = logprobs_BT.masked_fill(~mask_BT, 0.0)
    old_BT = logprobs_BT.detach() if batch.old_logprobs_BT is None else batch.old_logprobs_BT
    sampler_BT = batch.sampler_logprobs_BT

    # How far has the policy moved since it was sampled? On-policy the ratio is 1, with a gradient.
    log_ratio_BT = log_ratios(logprobs_BT, old_BT, mask_BT)
    ratio = importance_ratio(log_ratio_BT, mask_BT, objective.ratio)

    # Make answers that beat their group more likely, the others less, within a trusted distance.
    rho = off_policy = kl_BT = None
    if objective.mismatch != "none":
        assert sampler_BT is not None, "mismatch correction needs sampler_logprobs_BT"
        rho = mismatch_ratio(old_BT, sampler_BT, mask_BT, objective)
    terms = Terms(logprobs_BT, log_ratio_BT, ratio, advantages_BT, mask_BT, rho)
    loss_BT = objective.surrogate.loss(terms)

    # Weigh or drop what the present policy would not have sampled, or what it was sure of anyway.
    if rho is not None and not objective.surrogate.corrects_mismatch:
        loss_BT = loss_BT * rho
    if (limit := objective.off_policy_limit) is not None:
        drawn_BT = old_BT if sampler_BT is None else sampler_BT
        off_policy = off_policy_answers(logprobs_BT, drawn_BT, mask_BT, advantages_BT, limit)
        loss_BT = loss_BT * ~off_policy
    if (keep_BT := batch.keep_BT) is not None:
        loss_BT = loss_BT * keep_BT

    # Stay near the reference.
    if batch.ref_logprobs_BT is not None:
        ref_BT = batch.ref_logprobs_BT.masked_fill(~mask_BT, 0.0)
        kl_BT = KL_ESTIMATORS[objective.kl_estimator](logprobs_BT, ref_BT)
        if objective.kl_in == "loss":
            weight = objective.kl_weight * ratio if objective.kl_unbiased else objective.kl_weight
            loss_BT = loss_BT + weight * kl_BT
    else:
        assert not objective.kl_in_loss, "KL needs ref_logprobs_BT"

    return TokenLosses(loss_BT, ratio, kl_BT, rho, off_policy)


def outside_clip_edges(
    ratio: Tensor, advantages: Tensor, objective: Objective
) -> tuple[Tensor, Tensor] | None:
    """Where the ratio has passed an edge in the direction that the advantage pushes: low, high."""
    edges = objective.surrogate.clip_edges()
    if edges is None:
        return None
    return (ratio < edges[0]) & (advantages < 0), (ratio > edges[1]) & (advantages > 0)


def _metrics(each: TokenLosses, logprobs_BT: Tensor, batch: Batch, objective: Objective) -> Metrics:
    mask_BT, sampler_BT = batch.mask_BT, batch.sampler_logprobs_BT
    low, high = outside_clip_edges(each.ratio, batch.advantages_BT, objective) or (None, None)
    values = {"ratio": each.ratio, "clip_low": low, "clip_high": high, "kl": each.kl_BT}
    values |= {"mismatch": each.rho, "off_policy": each.off_policy}
    metrics = {name: _mean(value, mask_BT) for name, value in values.items() if value is not None}
    if sampler_BT is not None:  # how far sampler and trainer are apart, where that is known
        old_BT = logprobs_BT if batch.old_logprobs_BT is None else batch.old_logprobs_BT
        known_BT = mask_BT & ~sampler_BT.isnan()
        gap_BT = (old_BT - sampler_BT).detach().abs().masked_fill(~known_BT, 0.0)
        metrics["sampler_gap"] = _mean(gap_BT, known_BT)
    return metrics


def _mean(values: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    return (values.detach() * mask_BT).sum(), mask_BT.sum()
