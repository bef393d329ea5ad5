"""From the rewards of a rollout to the advantages of its batch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from groupwise.batch import Batch, with_advantages
from groupwise.objective.advantages.base import GroupRewards
from groupwise.objective.kl import KL_ESTIMATORS
from groupwise.objective.objective import Objective


def assign_advantages(batch: Batch, objective: Objective, weights: Mapping[str, float]) -> Batch:
    """The batch with its advantages filled in, one number an answer.

    Give it all groups of a step: some estimators look at the whole batch. `weights` are the
    rewards' weights by name; `group.rewards` is already the weighted sum.
    """
    if not batch.groups:
        return batch
    penalty_NG = _kl_penalties(batch, objective)
    rewards = GroupRewards(
        total_NG=_padded([group.rewards for group in batch.groups]) - penalty_NG,
        scores_NG={
            name: _padded([group.scores[name] for group in batch.groups])
            for name in batch.groups[0].scores
        },
        weights=weights,
        penalty_NG=penalty_NG,
    )
    rows = objective.advantage.estimate(rewards).tolist()
    groups = [
        replace(group, advantages=tuple(row[: len(group.completions)]))
        for group, row in zip(batch.groups, rows, strict=True)
    ]
    return with_advantages(batch, groups)


def _padded(rows: Sequence[Sequence[float | None]]) -> Tensor:
    width = max(len(row) for row in rows)
    filled = [[torch.nan if v is None else v for v in row] for row in rows]
    return torch.tensor(
        [row + [torch.nan] * (width - len(row)) for row in filled], dtype=torch.float64
    )


def _kl_penalties(batch: Batch, objective: Objective) -> Tensor | float:
    """What `kl_in: reward` takes off each answer's reward, (N, G); 0 with any other setting.

    The KL estimate of a whole answer is the sum over the tokens that the policy sampled.
    """
    if not objective.kl_in_reward:
        return 0.0
    assert batch.old_logprobs_BT is not None and batch.ref_logprobs_BT is not None
    estimator = KL_ESTIMATORS[objective.kl_estimator]
    kl_BT = estimator(batch.old_logprobs_BT.double(), batch.ref_logprobs_BT.double())
    kl_B = kl_BT.masked_fill(~batch.sampled_BT.to(kl_BT.device), 0.0).sum(1)
    penalties = iter((objective.kl_weight * kl_B).tolist())
    rows = [[next(penalties) for _ in group.completions] for group in batch.groups]
    return _padded(rows).nan_to_num(nan=0.0)
