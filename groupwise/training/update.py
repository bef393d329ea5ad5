"""The optimizer steps on one rollout: compute its log-probs again, weigh them by advantage, step.

The gradient does not depend on how a step is cut into micro-batches or over ranks: denominators are
counted over the whole optimizer step first (Batch.denominator), and micro-batches add up.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from groupwise.batch import Batch, make_batch, token_count
from groupwise.config import Config
from groupwise.distributed.world import World, even_shares
from groupwise.objective.corrections import entropy_threshold
from groupwise.objective.entropy import adapt_entropy_weight, applied_entropy_weight
from groupwise.objective.loss import Metrics, policy_loss
from groupwise.objective.objective import Objective
from groupwise.policy.compiled import compiled_layers, compiles_training
from groupwise.policy.forward import answer_logprobs
from groupwise.policy.logprobs import batch_logprobs, with_blanks
from groupwise.policy.packed_attention import use_packed_attention
from groupwise.rollout.noise import answer_key
from groupwise.training.optim import Stepper
from groupwise.training.state import TrainState
from groupwise.types import Group


@dataclass(frozen=True)
class Update:
    """One optimizer step: what it learned from and what came of it, for those who explain it.

    Log-probs are NaN where nothing was computed, since there is no gradient; where that is so for
    all groups, no step was taken.
    """

    batch: Batch
    logprobs_BT: Tensor
    entropies_BT: Tensor
    entropy_weight: float
    loss: float | None = 0.0
    grad_norm: float | None = 0.0
    lr: float | None = 0.0

    @property
    def computed(self) -> list[int]:
        """The groups whose log-probs are known."""
        known = ~self.logprobs_BT[:, 0].isnan()
        return sorted({self.batch.members[line][0] for line in known.nonzero()[:, 0].tolist()})


def rollout_batch(groups: Sequence[Group], config: Config) -> Batch:
    """The groups of a rollout as one batch, in CPU memory."""
    objective, limit = config.algorithm, config.rollout.max_completion_tokens
    batch = make_batch(groups, mask_truncated=objective.mask_truncated, max_tokens=limit)
    return _with_threshold(batch, objective)


def annotate(batch: Batch, state: TrainState, config: Config) -> Batch:
    """Add what must be known before the first update: old and reference log-probs, old entropies.

    Only what the objective needs. On-policy, the old log-probs are those of the update's own
    forward pass, so no pass is spent on them. Each rank computes its share of the groups.
    """
    objective, policy, world = config.algorithm, state.learner, state.optimizer.world
    temperature, reference = config.rollout.temperature, state.reference
    own = batch.select(_own_share(batch.groups, world))

    def computed(work: Callable[[int], Sequence[Tensor]]) -> list[Tensor]:
        """(B, T) tensors of the whole batch, from what each rank computes for its share."""
        own_tensors = state.budget.fit(work, lambda: None, batch.longest_row)
        on_device = [own_BT.to(policy.device) for own_BT in own_tensors]
        return [_from_all_ranks(own_BT, own, batch, world) for own_BT in on_device]

    off_policy = config.batch.minibatches * config.batch.epochs > 1
    if off_policy or objective.kl_in_reward or objective.top_entropy < 1:
        fused = compiles_training(policy.model, policy.device, config)
        logprobs_BT, entropies_BT = computed(
            lambda tokens: batch_logprobs(policy, own, temperature, tokens, compiled=fused)
        )
        batch = replace(batch, old_logprobs_BT=logprobs_BT, old_entropies_BT=entropies_BT)
        batch = _with_threshold(batch, objective)
    if reference is not None:
        (ref_logprobs_BT,) = computed(lambda tokens: [reference.logprobs(own, temperature, tokens)])
        batch = replace(batch, ref_logprobs_BT=ref_logprobs_BT)
    return batch


def learn(
    batch: Batch,
    state: TrainState,
    config: Config,
    observe: Callable[[Update], None] | None = None,
) -> dict[str, float]:
    """The optimizer steps on one rollout. Moves weights, moments, entropy weight and step count."""
    seed = answer_key(config.seed, "step", state.step) >> 1  # for dropout, if any
    torch.manual_seed(seed + state.optimizer.world.rank)
    objective = config.algorithm
    weight = applied_entropy_weight(state.entropy_weight, state.entropy, objective)
    metrics = update(batch, state, config, weight, observe)
    state.optimizer.fill(state.policy.model)
    state.step += 1
    if "entropy" in metrics:
        state.entropy = metrics["entropy"]
        state.entropy_weight = adapt_entropy_weight(state.entropy_weight, state.entropy, objective)
    return metrics


def update(
    batch: Batch,
    state: TrainState,
    config: Config,
    entropy_weight: float = 0.0,
    observe: Callable[[Update], None] | None = None,
) -> dict[str, float]:
    """`epochs` passes over the rollout, each in `minibatches` optimizer steps."""
    optimizer, model = state.optimizer, state.learner.model
    model.train()
    totals: Metrics = {}
    norms: list[float] = []
    lr = 0.0
    for _ in range(config.batch.epochs):
        for minibatch in batch.minibatches(config.batch.minibatches):
            record = None if observe is None else _unknown(minibatch, entropy_weight)
            metrics = state.budget.fit(
                lambda tokens, minibatch=minibatch, record=record: accumulate(
                    minibatch, state, config, entropy_weight, tokens, record
                ),
                optimizer.forget,
                batch.longest_row,
            )
            norm = loss = 0.0
            if metrics is not None:
                norm, lr = optimizer.step(state.step)
                norms.append(norm)
                metrics = _over_ranks(metrics, optimizer.world)
                _add(totals, metrics)
            if record is not None and observe is not None:
                loss = 0.0 if metrics is None else metrics["loss"][0].item()
                observe(replace(record, loss=loss, grad_norm=norm, lr=lr if metrics else 0.0))
    model.eval()
    return _summary(totals, norms, lr, optimizer)


def accumulate(
    batch: Batch,
    state: TrainState,
    config: Config,
    entropy_weight: float = 0.0,
    tokens_at_once: int | None = None,
    record: Update | None = None,
) -> Metrics | None:
    """The gradient of one optimizer step, added up over micro-batches; None when there is none.

    Groups without spread have zero advantage: unless KL or entropy acts on them too, they count in
    the denominator and are not computed. Of several ranks each computes its share, whose metrics
    are what comes back. `record` is filled with the log-probs that were used.
    """
    objective, policy, world = config.algorithm, state.learner, state.optimizer.world
    active = [n for n, group in enumerate(batch.groups) if _has_gradient(group, objective)]
    if not active:
        return None
    own = batch.select([active[n] for n in _own_share([batch.groups[n] for n in active], world)])
    budget = tokens_at_once or config.batch.tokens_per_microbatch
    micros = list(own.microbatches(policy.layout, budget, policy.pad_id))
    count = sum(world.gather(len(micros)))
    denominator = replace(batch.denominator, microbatches=count)
    micros = with_blanks(policy, micros)
    zero = torch.zeros((), device=policy.device)
    totals: Metrics = {"loss": (zero, zero + 1)}
    fused = compiles_training(policy.model, policy.device, config)
    for number, piece in enumerate(micros):
        micro = replace(piece, denominator=denominator).to(policy.device)
        assert micro.rows is not None
        with use_packed_attention(policy.model, micro.rows), compiled_layers(policy.model, fused):
            logprobs_BT, entropies_BT = answer_logprobs(
                policy,
                micro.rows,
                config.rollout.temperature,
                entropy_grad=objective.uses_entropy,
                compiled=fused,
            )
            loss, metrics = logprobs_BT.sum() * 0, {}  # of a blank micro-batch
            if micro.members:
                loss, metrics = policy_loss(
                    logprobs_BT, entropies_BT, micro, objective, entropy_weight
                )
            state.optimizer.backward(loss, number == len(micros) - 1)
        if record is not None and micro.members:
            _write(record, own, piece, logprobs_BT.detach(), entropies_BT.detach())
        # Micro-batch losses add up to the step's loss; every other metric is a mean.
        _add(totals, {**metrics, "loss": (loss.detach(), zero)})
    return totals


def _own_share(groups: Sequence[Group], world: World) -> list[int]:
    """Which of the groups this rank computes: about as many tokens as any other does."""
    return even_shares([token_count(group) for group in groups], world.size)[world.rank]


def _from_all_ranks(own_BT: Tensor, own: Batch, batch: Batch, world: World) -> Tensor:
    assert own.lines is not None
    whole_BT = torch.zeros(batch.mask_BT.shape, device=own_BT.device)
    whole_BT[own.lines.to(own_BT.device)] = own_BT.to(whole_BT.dtype)
    world.all_reduce([whole_BT])
    return whole_BT


def _with_threshold(batch: Batch, objective: Objective) -> Batch:
    """With the entropy from which `top_entropy` lets tokens learn.

    Over the whole rollout, so that it does not depend on how the rollout is cut.
    """
    if objective.top_entropy == 1 or batch.old_entropies_BT is None:
        return batch
    entropies_K = batch.old_entropies_BT[batch.mask_BT.to(batch.old_entropies_BT.device)]
    return replace(
        batch, entropy_threshold=entropy_threshold(entropies_K, objective.top_entropy).item()
    )


def _has_gradient(group: Group, objective: Objective) -> bool:
    if objective.uses_entropy or objective.kl_in_loss:
        return True
    return any(any(a) if isinstance(a, tuple) else a != 0 for a in group.advantages)


def _unknown(batch: Batch, entropy_weight: float) -> Update:
    nothing_BT = torch.full(batch.mask_BT.shape, math.nan, device=batch.mask_BT.device)
    return Update(batch, nothing_BT, nothing_BT.clone(), entropy_weight)


def _write(
    record: Update, own: Batch, micro: Batch, logprobs_BT: Tensor, entropies_BT: Tensor
) -> None:
    assert own.lines is not None and micro.lines is not None
    lines = own.lines[micro.lines]
    for tensor, values in (record.logprobs_BT, logprobs_BT), (record.entropies_BT, entropies_BT):
        tensor[lines, : values.shape[1]] = values.to(tensor)


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


def _over_ranks(metrics: Metrics, world: World) -> Metrics:
    """The sums and counts of all ranks together; the loss stays a sum."""
    if world.size == 1:
        return metrics
    numbers = {name: (total.item(), count.item()) for name, (total, count) in metrics.items()}
    added: Metrics = {}
    for part in world.gather(numbers):
        pairs = torch.tensor(list(part.values()), dtype=torch.float64)
        _add(added, {name: (pair[0], pair[1]) for name, pair in zip(part, pairs, strict=True)})
    return added | {"loss": (added["loss"][0], torch.ones((), dtype=torch.float64))}


def _add(totals: Metrics, more: Metrics) -> None:
    for name, (total, count) in more.items():
        before = totals.get(name)
        totals[name] = (total, count) if before is None else (before[0] + total, before[1] + count)
