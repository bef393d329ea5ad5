"""One GRPO update: score the sampled tokens again, weigh them by advantage, step downhill."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

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
from groupwise.objective.corrections import entropy_threshold
from groupwise.objective.loss import Metrics, Tokens, policy_loss
from groupwise.objective.presets import Objective
from groupwise.policy.forward import answer_logps
from groupwise.policy.load import Policy
from groupwise.policy.masks import flex_attending
from groupwise.policy.reference import Reference
from groupwise.train.memory_fit import TokenBudget
from groupwise.train.optim import Optimizer
from groupwise.types import Completion, Group


def annotate(
    groups: Sequence[Group],
    policy: Policy,
    reference: Reference | None,
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
    if off_policy or kl_in_reward or objective.top_entropy < 1:
        result = _with_logps(result, policy, config, budget, _as_old)
    if reference is not None:
        result = _with_logps(result, reference.policy, config, budget, _as_reference)
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
) -> dict[str, float]:
    """All optimizer steps on one rollout: `epochs` passes in `minibatches` pieces each."""
    threshold = _entropy_threshold(groups, config.algorithm)
    budget = budget or TokenBudget(config.batch.tokens_per_microbatch)
    longest = longest_row(groups)
    policy.model.train()
    totals: Metrics = {}
    norms: list[float] = []
    lr = 0.0
    for _ in range(config.batch.epochs):
        for part in split_evenly(groups, config.batch.minibatches):
            metrics = budget.fit(
                lambda tokens, part=part: accumulate(
                    part, policy, config, threshold, entropy_weight, tokens
                ),
                optimizer.forget,
                longest,
            )
            if metrics is None:
                continue
            norm, lr = optimizer.step(progress)
            norms.append(norm)
            _add(totals, metrics)
    policy.model.eval()
    means = {name: (s / c.clamp(min=1e-12)).item() for name, (s, c) in totals.items()}
    if not norms:
        return {"loss": 0.0, "grad_norm": 0.0, "lr": 0.0, "updates": 0, **means}
    return {"grad_norm": sum(norms) / len(norms), "lr": lr, "updates": len(norms), **means}


def accumulate(
    groups: Sequence[Group],
    policy: Policy,
    config: Config,
    keep_above: float | None = None,
    entropy_weight: float = 0.0,
    tokens_at_once: int | None = None,
) -> Metrics | None:
    """The gradient of one optimizer step, added up over micro-batches; None when there is none.

    The denominator is counted over all groups first, so the gradient does not depend on how they
    are cut. Groups without spread have zero advantage: unless KL or entropy acts on them too, they
    count in the denominator and are not computed.
    """
    objective, limit = config.algorithm, config.rollout.max_completion_tokens
    whole = denominator(groups, objective.mask_truncated, limit)
    needed = [group for group in groups if _has_gradient(group, objective)]
    pieces = list(
        microbatches(
            needed,
            layout=policy.layout,
            budget=tokens_at_once or config.batch.tokens_per_microbatch,
            mask_truncated=objective.mask_truncated,
            keep_above=keep_above,
            pad_id=policy.pad_id,
        )
    )
    if not pieces:
        return None
    whole = replace(whole, microbatches=len(pieces))
    if keep_above is not None:
        kept = sum(entropy >= keep_above for entropy in _counted_entropies(groups, objective))
        whole = replace(whole, kept_tokens=kept)
    totals: Metrics = {}
    for piece in pieces:
        micro = to_device(piece, policy.device)
        with flex_attending(policy.model, policy.flex):
            logps, entropies = answer_logps(
                policy,
                micro.rows,
                config.rollout.temperature,
                entropy_grad=objective.uses_entropy,
            )
            loss, metrics = policy_loss(
                _tokens(micro, logps, entropies), objective, whole, entropy_weight
            )
            loss.backward()
        one = torch.ones((), device=loss.device)
        _add(totals, {**metrics, "loss": (loss.detach(), one)})
    # Micro-batch losses add up to the step's loss; every other metric is a mean.
    totals["loss"] = (totals["loss"][0], torch.ones_like(totals["loss"][1]))
    return totals


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


def _entropy_threshold(groups: Sequence[Group], objective: Objective) -> float | None:
    """Over the whole rollout, so that it does not depend on how the rollout is cut."""
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


def _with_logps(
    groups: list[Group],
    policy: Policy,
    config: Config,
    budget: TokenBudget | None,
    put: Callable[[Completion, list[float], list[float]], Completion],
) -> list[Group]:
    budget = budget or TokenBudget(config.batch.tokens_per_microbatch)
    return budget.fit(
        lambda tokens: _scored(groups, policy, config, tokens, put),
        lambda: None,
        longest_row(groups),
    )


@torch.no_grad()
def _scored(
    groups: list[Group],
    policy: Policy,
    config: Config,
    tokens_at_once: int,
    put: Callable[[Completion, list[float], list[float]], Completion],
) -> list[Group]:
    """Groups with the log-probs that `policy` gives them, put where `put` says."""
    completions = [list(group.completions) for group in groups]
    for piece in microbatches(
        groups,
        layout=policy.layout,
        budget=tokens_at_once,
        pad_id=policy.pad_id,
    ):
        rows = to_device(piece, policy.device).rows
        with flex_attending(policy.model, policy.flex):
            logps, entropies = answer_logps(policy, rows, config.rollout.temperature)
        lines = zip(piece.members, logps.tolist(), entropies.tolist(), strict=True)
        for (group, answer), logp, entropy in lines:
            completions[group][answer] = put(completions[group][answer], logp, entropy)
    return [
        replace(group, completions=tuple(new))
        for group, new in zip(groups, completions, strict=True)
    ]


def _as_old(completion: Completion, logps: list[float], entropies: list[float]) -> Completion:
    length = len(completion.tokens)
    return replace(
        completion, old_logps=tuple(logps[:length]), old_entropies=tuple(entropies[:length])
    )


def _as_reference(completion: Completion, logps: list[float], _: list[float]) -> Completion:
    return replace(completion, ref_logps=tuple(logps[: len(completion.tokens)]))


def _add(totals: Metrics, more: Metrics) -> None:
    for name, (total, count) in more.items():
        before = totals.get(name)
        totals[name] = (total, count) if before is None else (before[0] + total, before[1] + count)
