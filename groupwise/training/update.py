"""The optimizer steps on one rollout: compute its log-probs again, weigh them by advantage, step.

The gradient does not depend on how a step is cut into micro-batches or over ranks: denominators are
counted over the whole optimizer step first (Batch.denominator), and micro-batches add up.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from groupwise.batch import Batch, Denominator, make_batch
from groupwise.config import Config
from groupwise.distributed.world import ALONE, World
from groupwise.objective.entropy import (
    adapt_entropy_weight,
    applied_entropy_weight,
    entropy_threshold,
)
from groupwise.objective.loss import Metrics, policy_loss
from groupwise.objective.objective import Objective
from groupwise.policy.forward import answer_logprobs
from groupwise.policy.logprobs import batch_logprobs, with_dummies
from groupwise.policy.packed_attention import use_packed_attention
from groupwise.policy.packing import microbatches
from groupwise.policy.training_layers import training_layers
from groupwise.rollout.noise import answer_key
from groupwise.training.metrics import add_metrics, over_ranks, update_metrics
from groupwise.training.recorder import Recorder
from groupwise.training.state import TrainState
from groupwise.types import Group


def rollout_batch(groups: Sequence[Group], config: Config) -> Batch:
    """The groups of a rollout as one batch, in CPU memory."""
    objective, limit = config.algorithm, config.rollout.max_completion_tokens
    batch = make_batch(groups, mask_truncated=objective.mask_truncated, max_tokens=limit)
    return _with_threshold(batch, objective, ALONE)


def annotate(batch: Batch, state: TrainState, config: Config) -> Batch:
    """Add what must be known before the first update: old and reference log-probs, old entropies.

    Only what the objective needs. On-policy, the old log-probs are those of the update's own
    forward pass, so no pass is spent on them. Each rank has its own groups.
    """
    objective, policy, world = config.algorithm, state.learner, state.optimizer.world
    temperature, reference = config.rollout.temperature, state.reference
    longest = world.max(batch.longest_row)

    def computed(work: Callable[[int], Sequence[Tensor]]) -> list[Tensor]:
        return [t_BT.to(policy.device) for t_BT in state.budget.fit(work, lambda: None, longest)]

    if config.needs_old_logprobs:
        layers = training_layers(policy.device, config)
        logprobs_BT, entropies_BT = computed(
            lambda tokens: batch_logprobs(policy, batch, temperature, tokens, layers=layers)
        )
        batch = replace(batch, old_logprobs_BT=logprobs_BT, old_entropies_BT=entropies_BT)
        batch = _with_threshold(batch, objective, world)
    if reference is not None:
        (ref_logprobs_BT,) = computed(
            lambda tokens: [reference.logprobs(batch, temperature, tokens)]
        )
        batch = replace(batch, ref_logprobs_BT=ref_logprobs_BT)
    return batch


def learn(
    batch: Batch, state: TrainState, config: Config, recorder: Recorder | None = None
) -> dict[str, float]:
    """The optimizer steps on one rollout. Moves weights, moments, entropy weight and step count."""
    seed = answer_key(config.seed, "step", state.step) >> 1  # for dropout, if any
    torch.manual_seed(seed + state.optimizer.world.rank)
    objective = config.algorithm
    weight = applied_entropy_weight(state.entropy_weight, state.entropy, objective)
    metrics = update(batch, state, config, weight, recorder)
    state.optimizer.end_training_step(state.step + 1, state.policy.model)
    if config.clear_cache and state.policy.device.type == "cuda":
        torch.cuda.empty_cache()
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
    recorder: Recorder | None = None,
) -> dict[str, float]:
    """`epochs` passes over the rollout, each in `minibatches` optimizer steps."""
    optimizer, model = state.optimizer, state.learner.model
    model.train()
    totals: Metrics = {}
    norms: list[float] = []
    lr = 0.0
    longest = optimizer.world.max(batch.longest_row)
    count = config.batch.minibatches
    for epoch in range(config.batch.epochs):
        for number, own in enumerate(batch.minibatches(count), start=epoch * count):
            minibatch = replace(own, denominator=_summed(own.denominator, optimizer.world))
            if recorder is not None:
                recorder.begin(minibatch, entropy_weight)
            work = partial(accumulate, minibatch, state, config, entropy_weight, recorder)
            metrics = state.budget.fit(work, optimizer.zero_grad, longest)
            if metrics is None:
                continue
            norm, lr = optimizer.step(state.step + number / (config.batch.epochs * count))
            metrics = over_ranks(metrics, optimizer.world)
            norms.append(norm)
            add_metrics(totals, metrics)
            if recorder is not None:
                recorder.end(metrics["loss"][0].item(), norm, lr)
    model.eval()
    return update_metrics(totals, norms, lr, optimizer.scale)


def accumulate(
    batch: Batch,
    state: TrainState,
    config: Config,
    entropy_weight: float = 0.0,
    recorder: Recorder | None = None,
    tokens_at_once: int | None = None,
) -> Metrics | None:
    """The gradient of one optimizer step, added up over micro-batches; None when there is none.

    Groups without spread have zero advantage: unless KL or entropy acts on them too, they count in
    the denominator and are not computed. Of several ranks each has its own groups, whose metrics
    are what comes back.
    """
    objective, policy, world = config.algorithm, state.learner, state.optimizer.world
    active = range(len(batch.groups))
    if not (objective.uses_entropy or objective.kl_in_loss):
        lines = batch.advantages_BT.any(1).nonzero()[:, 0].tolist()
        active = sorted({batch.members[line][0] for line in lines})
    if not any(world.gather(bool(active))):
        return None
    own = batch.select(active)
    budget = tokens_at_once or config.batch.tokens_per_microbatch
    micros = microbatches(own, policy.layout, budget, policy.pad_id)
    denominator = replace(batch.denominator, microbatches=sum(world.gather(len(micros))))
    micros = with_dummies(policy, micros)
    zero = torch.zeros((), device=policy.device)
    totals: Metrics = {"loss": (zero, zero + 1)}
    layers = training_layers(policy.device, config)
    for number, piece in enumerate(micros, start=1):
        micro = replace(piece, denominator=denominator).to(policy.device)
        with use_packed_attention(policy.model, micro.rows), layers.in_use(policy.model):
            logprobs_BT, entropies_BT = answer_logprobs(
                policy,
                micro.rows,
                config.rollout.temperature,
                entropy_grad=objective.uses_entropy,
            )
            loss, metrics = logprobs_BT.sum() * 0, {}  # of a dummy micro-batch
            if micro.members:
                loss, metrics = policy_loss(
                    logprobs_BT, entropies_BT, micro, objective, entropy_weight
                )
            state.optimizer.backward(loss, last=number == len(micros))
        if recorder is not None and micro.members:
            recorder.microbatch(own.lines[piece.lines], logprobs_BT, entropies_BT)
        # Micro-batch losses add up to the step's loss; every other metric is a mean.
        add_metrics(totals, {**metrics, "loss": (loss.detach(), zero)})
    return totals


def _summed(own: Denominator, world: World) -> Denominator:
    """Of all ranks together."""
    counts = zip(*world.gather([own.answers, own.tokens, own.kept_tokens or 0]), strict=True)
    answers, tokens, kept = map(sum, counts)
    kept_tokens = None if own.kept_tokens is None else kept
    return replace(own, answers=answers, tokens=tokens, kept_tokens=kept_tokens)


def _with_threshold(batch: Batch, objective: Objective, world: World) -> Batch:
    """With the entropy from which `top_entropy` lets tokens learn.

    Over the whole rollout, so that it does not depend on how the rollout is cut.
    """
    if objective.top_entropy == 1 or batch.old_entropies_BT is None:
        return batch
    entropies_K = batch.old_entropies_BT[batch.mask_BT.to(batch.old_entropies_BT.device)]
    entropies_K = world.gather_floats(entropies_K)
    if not len(entropies_K):
        return batch
    threshold = entropy_threshold(entropies_K, objective.top_entropy)
    return replace(batch, entropy_threshold=threshold.item())
