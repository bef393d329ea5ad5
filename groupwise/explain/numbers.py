"""What every token of an optimizer step adds to the loss, and how hard it is pushed.

`token_numbers` takes an optimizer step (`Update`) as one batch, calls the objective's own functions
and asks autograd for two things: the weight that aggregation gives each token's loss (it is linear,
so loss times weight are shares that add up), and dL/dlogprob, the push on each token's log-prob,
which is all that the objective tells the model.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from groupwise.batch import Batch
from groupwise.objective.loss import (
    TokenLosses,
    aggregated,
    outside_clip_edges,
    policy_loss,
    token_losses,
)
from groupwise.objective.objective import Objective
from groupwise.training.recorder import Update

AnswerIndex = tuple[int, int]
"""(group, answer)"""


@dataclass(frozen=True, slots=True)
class TokenNumbers:
    """One token of one answer.

    `loss` is its share of the step's loss, `push` is dL/dlogp: negative makes it likelier. A token
    that does not count (a tool's, or of an answer that is masked) has 0 for both.
    """

    logprob: float
    old_logp: float
    ratio: float
    clipped: bool
    kl: float | None
    entropy: float | None
    counts: bool
    loss: float
    push: float


@dataclass(frozen=True)
class StepNumbers:
    """All tokens of a moment by (group, answer), and what they add up to.

    loss = sum of the tokens' shares - entropy_bonus
    """

    answers: dict[AnswerIndex, list[TokenNumbers]]
    loss: float
    entropy_bonus: float
    clipped: float
    """The share of counting tokens that are clipped."""

    def share(self, index: AnswerIndex) -> float:
        """What one answer adds to the loss; 0 for one that was not computed."""
        return sum(token.loss for token in self.answers.get(index, []))


def token_numbers(update: Update, objective: Objective) -> StepNumbers:
    """Every number of the groups that the update computed. The others add exactly 0."""
    chosen = sorted(update.computed)
    if not chosen:
        return StepNumbers({}, 0.0, 0.0, 0.0)
    batch = update.batch.select(chosen)
    batch = replace(batch, denominator=replace(batch.denominator, microbatches=1))
    logprobs_BT = update.logprobs_BT[batch.lines].nan_to_num(nan=0.0).requires_grad_()
    entropies_BT = update.entropies_BT[batch.lines]
    each = token_losses(logprobs_BT, batch, objective)
    loss_BT = each.loss.expand_as(logprobs_BT).contiguous()
    with torch.enable_grad():
        per_token_BT = loss_BT.detach().requires_grad_()
        total = aggregated(per_token_BT, batch, objective)
        (weight_BT,) = torch.autograd.grad(total, per_token_BT)
    loss, _ = policy_loss(logprobs_BT, entropies_BT, batch, objective, update.entropy_weight)
    (push_BT,) = torch.autograd.grad(loss, logprobs_BT)
    columns = _columns(
        logprobs_BT, entropies_BT, batch, each, loss_BT * weight_BT, push_BT, objective
    )
    answers = {}
    for line, (group, answer) in enumerate(batch.members):
        length = len(batch.groups[group].completions[answer].tokens)
        tokens = zip(*(column[line][:length] for column in columns), strict=True)
        answers[chosen[group], answer] = [TokenNumbers(*numbers) for numbers in tokens]
    counted = [token for line in answers.values() for token in line if token.counts]
    return StepNumbers(
        answers,
        loss.item(),
        total.item() - loss.item(),
        sum(token.clipped for token in counted) / max(len(counted), 1),
    )


def _columns(
    logprobs_BT: Tensor,
    entropies_BT: Tensor,
    batch: Batch,
    each: TokenLosses,
    share_BT: Tensor,
    push_BT: Tensor,
    objective: Objective,
) -> list[list[list[Any]]]:
    """The fields of TokenNumbers in order, by line and token, as plain numbers."""
    shape = logprobs_BT.shape
    clipped_BT = torch.zeros(shape, dtype=torch.bool)
    edges = outside_clip_edges(each.ratio, batch.advantages_BT, objective)
    if edges is not None:
        clipped_BT = (edges[0] | edges[1]).expand(shape)
    return [
        logprobs_BT.tolist(),
        (logprobs_BT if batch.old_logprobs_BT is None else batch.old_logprobs_BT).tolist(),
        each.ratio.expand(shape).tolist(),
        clipped_BT.tolist(),
        _known(each.kl_BT, shape),
        _known(entropies_BT, shape),
        batch.mask_BT.tolist(),
        (share_BT * batch.mask_BT).double().tolist(),
        push_BT.double().tolist(),
    ]


def _known(values_BT: Tensor | None, shape: torch.Size) -> list[list[float | None]]:
    """None for what was not computed."""
    if values_BT is None:
        return [[None] * shape[1]] * shape[0]
    return [[None if math.isnan(v) else v for v in line] for line in values_BT.tolist()]
