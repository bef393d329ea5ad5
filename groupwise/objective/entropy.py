"""Entropy: the bonus, fixed or steered towards a target, and which tokens `top_entropy` keeps.

The bonus is the mean entropy of the step's tokens. It is divided by the step's own token count,
whatever the aggregation of the policy loss, so that its weight means the same under every preset.

Steering is two pure rules. `adapt_entropy_weight` moves the weight by a fixed amount after each
step: up while entropy is at or under the target, down while above, within [0, entropy_weight_max].
`applied_entropy_weight` switches the bonus off at once while entropy is above the target: the
weight alone comes down slowly, and would push entropy further up meanwhile.
"""

import torch
from torch import Tensor

from groupwise.batch import Denominator
from groupwise.objective.objective import Objective


def mean_entropy(
    entropies_BT: Tensor, mask_BT: Tensor, keep_BT: Tensor | None, over: Denominator
) -> Tensor:
    """This micro-batch's share of the mean entropy over the tokens that carry policy loss."""
    if keep_BT is None:
        return (entropies_BT * mask_BT).sum() / max(over.tokens, 1)
    kept = over.tokens if over.kept_tokens is None else over.kept_tokens
    return (entropies_BT * (mask_BT & keep_BT)).sum() / max(kept, 1)


def adapt_entropy_weight(weight: float, entropy: float, objective: Objective) -> float:
    """The weight after a step that measured this mean entropy; unchanged without a target."""
    if objective.entropy_target is None:
        return weight
    move = objective.entropy_delta
    moved = weight + (move if entropy <= objective.entropy_target else -move)
    return min(max(moved, 0.0), objective.entropy_weight_max)


def applied_entropy_weight(weight: float, entropy: float | None, objective: Objective) -> float:
    """The weight for a step's loss, from the entropy of the step before (None: no such step)."""
    if objective.entropy_target is None:
        return weight
    return weight if entropy is not None and entropy <= objective.entropy_target else 0.0


@torch.no_grad()
def entropy_threshold(entropies_K: Tensor, top: float) -> Tensor:
    """The entropy that the highest share `top` of tokens reach; keep those at or above it.

    Give it every token of the rollout: a threshold for each micro-batch would make the gradient
    depend on how a step is cut. As torch.quantile, which refuses more than 16 million values.
    """
    if entropies_K.numel() == 0:
        return entropies_K.new_zeros(())
    ordered_K = entropies_K.sort().values
    position = (1 - top) * (ordered_K.numel() - 1)
    below = int(position)
    above = min(below + 1, ordered_K.numel() - 1)
    return torch.lerp(ordered_K[below], ordered_K[above], position - below)
