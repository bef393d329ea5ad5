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
    token_count,
)
from groupwise.config import Config
from groupwise.distributed.world import ALONE, World, even_shares
from groupwise.objective.aggregate import Denominator
from groupwise.objective.corrections import entropy_threshold
from groupwise.objective.loss import Metrics, Tokens, policy_loss
from groupwise.objective.presets import Objective
from groupwise.policy.compiled import compiled_layers, compiles_training
from groupwise.policy.forward import answer_logprobs
from groupwise.policy.load import Policy
from groupwise.policy.packed_attention import use_packed_attention
from groupwise.policy.reference import KLReference
from groupwise.policy.scoring import Scored, score_groups, with_blanks
from groupwise.training.memory_fit import TokenBudget
from groupwise.training.optim import Stepper
from groupwise.types import Completion, Group

Place = tuple[int, int]
"""(group, answer)"""
Value = TypeVar("Value")
Backward = Callable[[Tensor, bool], None]
"""backward(loss, last): adds the loss's gradient to what is there; after the last comes a step."""


def _backward(loss: Tensor, last: bool) -> None:
    loss.backward()


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
    world: World = ALONE,
) -> list[Group]:
    """Add what must be known before the first update: old and reference log-probs, old entropies.

    Only what the objective needs. On-policy, the old log-probs are those of the update's own
    forward pass, so no pass is spent on them. Each rank scores its share of the groups.
    """
    objective, result = config.algorithm, list(groups)
    off_policy = config.batch.minibatches * config.batch.epochs > 1
    kl_in_reward = objective.needs_reference and objective.kl_in == "reward"
    budget = budget or TokenBudget(config.batch.tokens_per_microbatch)
    temperature = config.rollout.temperature

    share = own_share(groups, world)
    mine = [groups[index] for index in share]

    def fitted(score: Callable[[int], dict[Place, Value]]) -> dict[Place, Value]:
        found = budget.fit(score, lambda: None, longest_row(groups))
        return _from_all(found, share, world)

    if off_policy or kl_in_reward or objective.top_entropy < 1:
        fused = _compiles(policy, config)
        scored = fitted(
            lambda tokens: score_groups(policy, mine, temperature, tokens, compiled=fused)
        )
        result = _with(result, scored, _as_old)
    if reference is not None:
        logprobs = fitted(lambda tokens: reference.score(mine, temperature, tokens) if mine else {})
        result = _with(result, logprobs, _as_reference)
    return result


def own_share(groups: Sequence[Group], world: World) -> list[int]:
    """Which of the groups this rank computes: about as many tokens as any other does."""
    return even_shares([token_count(group) for group in groups], world.size)[world.rank]


def _from_all(found: dict[Place, Value], share: Sequence[int], world: World) -> dict[Place, Value]:
    """What all ranks found for their groups, by place among all groups."""
    own = [((share[group], answer), value) for (group, answer), value in found.items()]
    return {(group, answer): v for part in world.gather(own) for (group, answer), v in part}


def update(
    groups: Sequence[Group],
    policy: Policy,
    optimizer: Stepper,
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
                    scored,
                    world=optimizer.world,
                    backward=optimizer.backward,
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
            metrics = _over_ranks(metrics, optimizer.world)
            _add(totals, metrics)
            if observe is not None:
                loss = metrics["loss"][0].item()
                observe(Seen(part, scored or {}, threshold, entropy_weight, loss, norm, lr))
    policy.model.eval()
    return _summary(totals, norms, lr, optimizer)


def _summary(
    totals: Metrics, norms: Sequence[float], lr: float, optimizer: Stepper
) -> dict[str, float]:
    """Means over the optimizer steps of one rollout."""
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
    scored: Scored | None = None,
    *,
    world: World = ALONE,
    backward: Backward = _backward,
) -> Metrics | None:
    """The gradient of one optimizer step, added up over micro-batches; None when there is none.

    The denominator is counted over all groups first, so the gradient does not depend on how they
    are cut. Groups without spread have zero advantage: unless KL or entropy acts on them too, they
    count in the denominator and are not computed. Of several ranks each computes its share, whose
    metrics are what comes back. `scored` is filled with the log-probs that were used.
    """
    objective = config.algorithm
    active = [i for i, group in enumerate(groups) if _has_gradient(group, objective)]
    if not active:
        return None
    chosen = [active[n] for n in own_share([groups[i] for i in active], world)]
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
    count = sum(world.gather(len(pieces)))
    whole = replace(step_denominator(groups, config, keep_above), microbatches=count)
    zero = torch.zeros((), device=policy.device)
    totals: Metrics = {"loss": (zero, zero + 1)}
    fused = _compiles(policy, config)
    pieces = with_blanks(policy, pieces)
    for number, piece in enumerate(pieces):
        micro = to_device(piece, policy.device)
        rows = micro.rows
        with use_packed_attention(policy.model, rows), compiled_layers(policy.model, fused):
            temperature, with_entropy = config.rollout.temperature, objective.uses_entropy
            logprobs, entropies = answer_logprobs(
                policy, rows, temperature, entropy_grad=with_entropy, compiled=fused
            )
            tokens = _tokens(micro, logprobs, entropies)
            loss, metrics = logprobs.sum() * 0, {}  # of a blank piece
            if piece.members:
                loss, metrics = policy_loss(tokens, objective, whole, entropy_weight)
            backward(loss, number == len(pieces) - 1)
        if scored is not None:
            lines = zip(piece.members, logprobs.tolist(), entropies.tolist(), strict=True)
            scored |= {(chosen[g], a): (logprob, entropy) for (g, a), logprob, entropy in lines}
        # Micro-batch losses add up to the step's loss; every other metric is a mean.
        _add(totals, {**metrics, "loss": (loss.detach(), zero)})
    return totals


def _over_ranks(metrics: Metrics, world: World) -> Metrics:
    """The sums and counts of all ranks together; the loss stays a sum."""
    if world.size == 1:
        return metrics
    numbers = {name: (total.item(), count.item()) for name, (total, count) in metrics.items()}
    added: Metrics = {}
    for found in world.gather(numbers):
        pairs = torch.tensor(list(found.values()), dtype=torch.float64)
        _add(added, {name: (pair[0], pair[1]) for name, pair in zip(found, pairs, strict=True)})
    return added | {"loss": (added["loss"][0], torch.ones((), dtype=torch.float64))}


def _compiles(policy: Policy, config: Config) -> bool:
    return compiles_training(policy.model, policy.device, config)


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


def _tokens(micro: Microbatch, logprobs_BT: Tensor, entropies_BT: Tensor) -> Tokens:
    return Tokens(
        logprobs_BT=logprobs_BT,
        mask_BT=micro.mask_BT,
        advantages_BT=micro.advantages_BT,
        old_logprobs_BT=micro.old_logprobs_BT,
        sampler_logprobs_BT=micro.sampler_logprobs_BT,
        ref_logprobs_BT=micro.ref_logprobs_BT,
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
    logprobs, entropies = scored
    return replace(completion, old_logprobs=tuple(logprobs), old_entropies=tuple(entropies))


def _as_reference(completion: Completion, logprobs: list[float]) -> Completion:
    return replace(completion, ref_logprobs=tuple(logprobs))


def _add(totals: Metrics, more: Metrics) -> None:
    for name, (total, count) in more.items():
        before = totals.get(name)
        totals[name] = (total, count) if before is None else (before[0] + total, before[1] + count)
