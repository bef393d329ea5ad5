"""One GRPO update: score the sampled tokens again, weigh them by advantage, step downhill."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from groupwise.batch import (
    Microbatch,
    denominator,
    longest_row,
    microbatches,
    split_evenly,
    to_device,
)
from groupwise.config import Config
from groupwise.objective.aggregate import Denominator
from groupwise.objective.corrections import entropy_threshold
from groupwise.objective.loss import Metrics, Tokens, policy_loss
from groupwise.objective.presets import Objective
from groupwise.policy.compiled import compiled_layers
from groupwise.policy.forward import answer_logps
from groupwise.policy.load import Policy
from groupwise.policy.pieces import attending_rows
from groupwise.policy.reference import KLReference
from groupwise.policy.scoring import Scored, score_groups
from groupwise.train.memory_fit import TokenBudget
from groupwise.train.optim import Optimizer
from groupwise.types import Completion, Group

Place = tuple[int, int]
"""(group, answer)"""
Value = TypeVar("Value")


@dataclass(frozen=True)
class Seen:
    """What one optimizer step worked with, for those who explain it.

    `scored` lacks the groups that were not computed because they have no gradient; where it is
    empty, no step was taken.
    """

    groups: Sequence[Group]
    scored: Scored
    keep_above: float | None
    entropy_weight: float
    loss: float
    grad_norm: float
    lr: float


def annotate(
    groups: Sequence[Group],
    policy: Policy,
    reference: KLReference | None,
    config: Config,
    budget: TokenBudget | None = None,
) -> list[Group]:
    """Add what must be known before the first update: old and reference log-probs, old entropies.

    Only what the objective needs. On-policy, the old log-probs are those of the update's own
    forward pass, so no pass is spent on them.
    """
    objective, result = config.algorithm, list(groups)
    off_policy = config.batch.minibatches * config.batch.epochs > 1
    kl_in_reward = objective.needs_reference and objective.kl_in == "reward"
    budget = budget or TokenBudget(config.batch.tokens_per_microbatch)
    heat = config.rollout.temperature

    def fitted(score: Callable[[int], dict[Place, Value]]) -> dict[Place, Value]:
        return budget.fit(score, lambda: None, longest_row(groups))

    if off_policy or kl_in_reward or objective.top_entropy < 1:
        fused = _compiles(policy, config)
        scored = fitted(lambda tokens: score_groups(policy, groups, heat, tokens, compiled=fused))
        result = _with(result, scored, _as_old)
    if reference is not None:
        logps = fitted(lambda tokens: reference.score(groups, heat, tokens))
        result = _with(result, logps, _as_reference)
    return result


def update(
    groups: Sequence[Group],
    policy: Policy,
    optimizer: Optimizer,
    config: Config,
    *,
    progress: int,
    entropy_weight: float,
    budget: TokenBudget | None = None,
    observe: Callable[[Seen], None] | None = None,
) -> dict[str, float]:
    """All optimizer steps on one rollout: `epochs` passes in `minibatches` pieces each.

    `observe` is shown what each of them worked with.
    """
    threshold = keep_threshold(groups, config.algorithm)
    budget = budget or TokenBudget(config.batch.tokens_per_microbatch)
    longest = longest_row(groups)
    policy.model.train()
    totals: Metrics = {}
    norms: list[float] = []
    lr = 0.0
    for _ in range(config.batch.epochs):
        for part in split_evenly(groups, config.batch.minibatches):
            scored: Scored | None = None if observe is None else {}
            metrics = budget.fit(
                lambda tokens, part=part, scored=scored: accumulate(
                    part,
                    policy,
                    config,
                    threshold,
                    entropy_weight,
                    tokens,
                    optimizer.loss_scale,
                    scored,
                ),
                optimizer.forget,
                longest,
            )
            if metrics is None:
                if observe is not None:
                    observe(Seen(part, {}, threshold, entropy_weight, 0.0, 0.0, 0.0))
                continue
            norm, lr = optimizer.step(progress)
            norms.append(norm)
            _add(totals, metrics)
            if observe is not None:
                loss = metrics["loss"][0].item()
                observe(Seen(part, scored or {}, threshold, entropy_weight, loss, norm, lr))
    policy.model.eval()
    means = {name: (s / c.clamp(min=1e-12)).item() for name, (s, c) in totals.items()}
    if not norms:
        return {"loss": 0.0, "grad_norm": 0.0, "lr": 0.0, "updates": 0, "skipped": 0, **means}
    taken = [norm for norm in norms if math.isfinite(norm)]
    skipped = len(norms) - len(taken)
    if optimizer.scale is not None:
        means["loss_scale"] = optimizer.loss_scale
    norm = sum(taken) / len(taken) if taken else norms[0]
    return {"grad_norm": norm, "lr": lr, "updates": len(taken), "skipped": skipped, **means}


def accumulate(
    groups: Sequence[Group],
    policy: Policy,
    config: Config,
    keep_above: float | None = None,
    entropy_weight: float = 0.0,
    tokens_at_once: int | None = None,
    loss_scale: float = 1.0,
    scored: Scored | None = None,
) -> Metrics | None:
    """The gradient of one optimizer step, added up over micro-batches; None when there is none.

    The denominator is counted over all groups first, so the gradient does not depend on how they
    are cut. Groups without spread have zero advantage: unless KL or entropy acts on them too, they
    count in the denominator and are not computed. The gradient is `loss_scale` times the loss's.
    `scored` is filled with the log-probs that were used.
    """
    objective = config.algorithm
    chosen = [i for i, group in enumerate(groups) if _has_gradient(group, objective)]
    pieces = list(
        microbatches(
            [groups[i] for i in chosen],
            layout=policy.layout,
            budget=tokens_at_once or config.batch.tokens_per_microbatch,
            mask_truncated=objective.mask_truncated,
            keep_above=keep_above,
            pad_id=policy.pad_id,
        )
    )
    if not pieces:
        return None
    whole = replace(step_denominator(groups, config, keep_above), microbatches=len(pieces))
    totals: Metrics = {}
    fused = _compiles(policy, config)
    for piece in pieces:
        micro = to_device(piece, policy.device)
        rows = micro.rows
        with attending_rows(policy.model, rows), compiled_layers(policy.model, fused):
            logps, entropies = answer_logps(
                policy,
                rows,
                config.rollout.temperature,
                entropy_grad=objective.uses_entropy,
                compiled=fused,
            )
            loss, metrics = policy_loss(
                _tokens(micro, logps, entropies), objective, whole, entropy_weight
            )
            (loss * loss_scale if loss_scale != 1 else loss).backward()
        if scored is not None:
            lines = zip(piece.members, logps.tolist(), entropies.tolist(), strict=True)
            scored |= {(chosen[g], a): (logp, entropy) for (g, a), logp, entropy in lines}
        one = torch.ones((), device=loss.device)
        _add(totals, {**metrics, "loss": (loss.detach(), one)})
    # Micro-batch losses add up to the step's loss; every other metric is a mean.
    totals["loss"] = (totals["loss"][0], torch.ones_like(totals["loss"][1]))
    return totals


def _compiles(policy: Policy, config: Config) -> bool:
    return policy.device.type == "cuda" and config.compiles_training


def step_denominator(
    groups: Sequence[Group], config: Config, keep_above: float | None
) -> Denominator:
    """What the losses of an optimizer step are divided by, counted over all of its groups."""
    objective, limit = config.algorithm, config.rollout.max_completion_tokens
    whole = denominator(groups, objective.mask_truncated, limit)
    if keep_above is None:
        return whole
    kept = sum(entropy >= keep_above for entropy in _counted_entropies(groups, objective))
    return replace(whole, kept_tokens=kept)


def _tokens(micro: Microbatch, logps_BT: Tensor, entropies_BT: Tensor) -> Tokens:
    return Tokens(
        logps_BT=logps_BT,
        mask_BT=micro.mask_BT,
        advantages_BT=micro.advantages_BT,
        old_logps_BT=micro.old_logps_BT,
        sampler_logps_BT=micro.sampler_logps_BT,
        ref_logps_BT=micro.ref_logps_BT,
        entropies_BT=entropies_BT,
        keep_BT=micro.keep_BT,
    )


def keep_threshold(groups: Sequence[Group], objective: Objective) -> float | None:
    """The entropy from which `top_entropy` lets tokens learn; None: all do.

    Over the whole rollout, so that it does not depend on how the rollout is cut.
    """
    if objective.top_entropy == 1:
        return None
    entropies = torch.tensor(list(_counted_entropies(groups, objective)))
    return entropy_threshold(entropies, objective.top_entropy).item()


def _counted_entropies(groups: Sequence[Group], objective: Objective) -> Iterator[float]:
    """Old entropies of the tokens that carry loss."""
    for group in groups:
        for completion in group.completions:
            if not (objective.mask_truncated and completion.truncated):
                entropies = completion.old_entropies or ()
                sampled = completion.sampled or (True,) * len(entropies)
                yield from (e for e, own in zip(entropies, sampled, strict=True) if own)


def _has_gradient(group: Group, objective: Objective) -> bool:
    if objective.uses_entropy or (objective.needs_reference and objective.kl_in == "loss"):
        return True
    return any(any(a) if isinstance(a, tuple) else a != 0 for a in group.advantages)


def _with(
    groups: Sequence[Group],
    values: Mapping[Place, Value],
    put: Callable[[Completion, Value], Completion],
) -> list[Group]:
    """Groups with a value for each of their answers, put where `put` says."""
    return [
        replace(
            group,
            completions=tuple(
                put(completion, values[index, answer])
                for answer, completion in enumerate(group.completions)
            ),
        )
        for index, group in enumerate(groups)
    ]


def _as_old(completion: Completion, scored: tuple[list[float], list[float]]) -> Completion:
    logps, entropies = scored
    return replace(completion, old_logps=tuple(logps), old_entropies=tuple(entropies))


def _as_reference(completion: Completion, logps: list[float]) -> Completion:
    return replace(completion, ref_logps=tuple(logps))


def _add(totals: Metrics, more: Metrics) -> None:
    for name, (total, count) in more.items():
        before = totals.get(name)
        totals[name] = (total, count) if before is None else (before[0] + total, before[1] + count)
