"""From the rewards of a rollout to the advantages of its batch."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from groupwise.batch import Batch, token_advantages
from groupwise.objective.advantages.base import GroupRewards
from groupwise.objective.kl import KL_ESTIMATORS
from groupwise.objective.objective import Objective
from groupwise.objective.turns import reward_units, shared, with_turn_advantages


def assign_advantages(
    batch: Batch,
    objective: Objective,
    weights: Mapping[str, float],
    turn_weight: float | None = None,
    estimate: Callable[[GroupRewards], Tensor] | None = None,
) -> Batch:
    """The batch with its advantages filled in, one number an answer.

    Give it all groups of a step: some estimators look at the whole batch. `weights` are the
    rewards' weights by name; `group.rewards` is already the weighted sum. With `turn_weight`, the
    weight of what an environment gave for single turns, each turn of an episode has its own.
    `estimate` in place of the objective's own sees what other ranks have as well.
    """
    groups = batch.groups
    if not groups:
        return batch
    shape = len(groups), max(len(group.completions) for group in groups)
    place = torch.tensor(batch.members).unbind(1)

    def by_group(values: Iterable[float | None]) -> Tensor:
        """(N, G) from one value for each answer of the batch; NaN where there is none."""
        known = [math.nan if value is None else value for value in values]
        values_NG = torch.full(shape, math.nan, dtype=torch.float64)
        return values_NG.index_put(place, torch.tensor(known, dtype=torch.float64))

    penalty_NG = by_group(_kl_penalties(batch, objective)).nan_to_num(nan=0.0)
    rewards = GroupRewards(
        total_NG=by_group(r for group in groups for r in group.rewards) - penalty_NG,
        scores_NG={
            name: by_group(score for group in groups for score in group.scores[name])
            for name in groups[0].scores
        },
        weights=weights,
        penalty_NG=penalty_NG,
    )
    advantages = (estimate or objective.advantage.estimate)(rewards).tolist()
    groups = tuple(
        replace(group, advantages=shared(group, row))
        for group, row in zip(groups, advantages, strict=True)
    )
    if turn_weight:
        units_N = reward_units(objective.advantage, rewards.total_NG)
        groups = tuple(
            with_turn_advantages(group, unit * turn_weight)
            for group, unit in zip(groups, units_N, strict=True)
        )
    return replace(batch, groups=groups, advantages_BT=token_advantages(groups))


def _kl_penalties(batch: Batch, objective: Objective) -> list[float]:
    """What `kl_in: reward` takes off each answer's reward; 0 with any other setting.

    The KL estimate of a whole answer is the sum over the tokens that the policy sampled.
    """
    if not objective.kl_in_reward:
        return [0.0] * len(batch.members)
    assert batch.old_logprobs_BT is not None and batch.ref_logprobs_BT is not None
    estimator = KL_ESTIMATORS[objective.kl_estimator]
    kl_BT = estimator(batch.old_logprobs_BT.double(), batch.ref_logprobs_BT.double())
    kl_B = kl_BT.masked_fill(~batch.sampled_BT.to(kl_BT.device), 0.0).sum(1)
    penalties: list[float] = (objective.kl_weight * kl_B).tolist()
    for line, completion in reversed(list(enumerate(batch.completions))):
        if completion.segment:  # an episode is penalised as a whole
            penalties[line - 1] += penalties[line]
    return penalties
