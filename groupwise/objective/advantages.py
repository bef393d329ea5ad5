"""Advantages: how much better an answer is than the other answers to the same problem.

A missing reward (None, here NaN) is left out of every mean and deviation, and its answer gets 0. So
does an answer without any other to compare with, and exactly 0 goes to groups whose rewards are all
equal. Deviations are the sample's (n - 1), with 1e-4 added so that tiny ones do not explode.

`scale: batch` and `per_reward` look at the whole batch, so give `advantages` all groups of a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from groupwise.objective.kl import KL_ESTIMATORS
from groupwise.objective.presets import Objective
from groupwise.types import Completion, Group

EPSILON = 1e-4


def advantages(
    groups: Sequence[Group], objective: Objective, weights: Mapping[str, float]
) -> list[Group]:
    """The groups with their advantages filled in, one number an answer.

    `weights` are the rewards' weights by name; only `per_reward` needs them, for otherwise
    `group.rewards` is already the weighted sum.
    """
    if not groups:
        return []
    penalty_NG = _kl_penalties(groups, objective)
    if objective.per_reward:
        used = {name: weight for name, weight in weights.items() if weight != 0}
        scores_RNG = torch.stack([_padded([g.scores[name] for g in groups]) for name in used])
        weights_R = torch.tensor(list(used.values()), dtype=torch.float64)
        result_NG = per_reward_advantages(scores_RNG, weights_R, penalty_NG)
    else:
        rewards_NG = _padded([g.rewards for g in groups]) - penalty_NG
        result_NG = group_advantages(rewards_NG, objective.baseline, objective.scale)
    return [
        replace(group, advantages=tuple(row[: len(group.completions)]))
        for group, row in zip(groups, result_NG.tolist(), strict=True)
    ]


def group_advantages(
    rewards_NG: Tensor,
    baseline: Literal["mean", "leave_one_out"] = "mean",
    scale: Literal["group", "batch", "none"] = "group",
) -> Tensor:
    """(reward - baseline) / deviation, for N groups of up to G answers. NaN: no such answer."""
    known_NG = ~rewards_NG.isnan()
    above_NG = _centered(rewards_NG)
    if baseline == "leave_one_out":
        count_N1 = known_NG.sum(1, keepdim=True)
        # r - mean of the n - 1 others = n / (n - 1) (r - mean of all n)
        above_NG = above_NG * count_N1 / (count_N1 - 1).clamp(min=1)
    if scale == "group":
        above_NG = above_NG / (_deviation(rewards_NG) + EPSILON)
    elif scale == "batch":
        above_NG = above_NG / (_deviation(rewards_NG.reshape(1, -1)) + EPSILON)
    return above_NG


def per_reward_advantages(
    scores_RNG: Tensor, weights_R: Tensor, penalty_NG: Tensor | float = 0.0
) -> Tensor:
    """GDPO: z-score each reward within its group, sum by weight, whiten over the batch.

    So a reward with a small spread is not drowned by one with a large spread. `penalty_NG` is taken
    off the sum before whitening.
    """
    zscores_RNG = torch.stack([group_advantages(scores_NG) for scores_NG in scores_RNG])
    total_NG = (weights_R.view(-1, 1, 1) * zscores_RNG).sum(0) - penalty_NG
    scored_NG = (~scores_RNG.isnan()).any(0)
    total_1K = total_NG.masked_fill(~scored_NG, torch.nan).reshape(1, -1)
    whitened_1K = _centered(total_1K) / (_deviation(total_1K) + EPSILON)
    return whitened_1K.view_as(total_NG)


def _centered(rewards_NG: Tensor) -> Tensor:
    """Rewards minus their row's mean; 0 where unknown."""
    known_NG = ~rewards_NG.isnan()
    # Measured from the row's least, equal rewards come out as 0 exactly, not as rounding noise that
    # a division by a deviation of nearly 0 would blow up.
    least_N1 = rewards_NG.masked_fill(~known_NG, torch.inf).amin(1, keepdim=True)
    from_least_NG = (rewards_NG - least_N1).masked_fill(~known_NG, 0.0)
    mean_N1 = from_least_NG.sum(1, keepdim=True) / known_NG.sum(1, keepdim=True).clamp(min=1)
    return (from_least_NG - mean_N1).masked_fill(~known_NG, 0.0)


def _deviation(rewards_NG: Tensor) -> Tensor:
    """The sample standard deviation of each row's known rewards, (N, 1); 0 for fewer than two."""
    freedom_N1 = (~rewards_NG.isnan()).sum(1, keepdim=True) - 1
    squares_N1 = _centered(rewards_NG).square().sum(1, keepdim=True)
    return (squares_N1 / freedom_N1.clamp(min=1)).sqrt()


def _padded(rows: Sequence[Sequence[float | None]]) -> Tensor:
    width = max(len(row) for row in rows)
    filled = [[torch.nan if v is None else v for v in row] for row in rows]
    return torch.tensor(
        [row + [torch.nan] * (width - len(row)) for row in filled], dtype=torch.float64
    )


def _kl_penalties(groups: Sequence[Group], objective: Objective) -> Tensor | float:
    """What `kl_in: reward` takes off each answer's reward, (N, G); 0 with any other setting."""
    if objective.kl_in != "reward" or objective.kl_weight == 0:
        return 0.0
    rows = [[_kl(c, objective.kl_estimator) for c in group.completions] for group in groups]
    return objective.kl_weight * _padded(rows).nan_to_num(nan=0.0)


def _kl(completion: Completion, estimator: str) -> float:
    """The KL estimate of a whole answer: its sampled tokens' sum."""
    assert completion.old_logprobs is not None and completion.ref_logprobs is not None
    old_T, ref_T = (
        torch.tensor(logprobs, dtype=torch.float64)
        for logprobs in (completion.old_logprobs, completion.ref_logprobs)
    )
    kl_T = KL_ESTIMATORS[estimator](old_T, ref_T)
    if completion.sampled is not None:
        kl_T = kl_T[torch.tensor(completion.sampled, dtype=torch.bool)]
    return kl_T.sum().item()
