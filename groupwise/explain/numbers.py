"""What every token of an optimizer step adds to the loss, and how hard it is pushed.

`token_numbers` takes an optimizer step (`Update`) as one batch, calls the objective's own functions
and asks autograd for two things: the weight that aggregation gives each token's loss (it is linear,
so loss times weight are shares that add up), and dL/dlogprob, the push on each token's log-prob,
which is all that the objective tells the model.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from groupwise.batch import Batch
from groupwise.objective.aggregate import AGGREGATES
from groupwise.objective.loss import TokenLosses, outside_clip_edges, policy_loss, token_losses
from groupwise.objective.objective import Objective
from groupwise.training.update import Update

Place = tuple[int, int]
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

    answers: dict[Place, list[TokenNumbers]]
    loss: float
    entropy_bonus: float
    clipped: float
    """The share of counting tokens that are clipped."""

    def share(self, place: Place) -> float:
        """What one answer adds to the loss; 0 for one that was not computed."""
        return sum(token.loss for token in self.answers.get(place, []))


def token_numbers(update: Update, objective: Objective) -> StepNumbers:
    """Every number of the groups that the update computed. The others add exactly 0."""
    chosen = update.computed
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
        aggregate = AGGREGATES[objective.aggregate]
        total = aggregate(per_token_BT, batch.mask_BT, batch.denominator)
        (weight_BT,) = torch.autograd.grad(total, per_token_BT)
    loss, _ = policy_loss(logprobs_BT, entropies_BT, batch, objective, update.entropy_weight)
    (push_BT,) = torch.autograd.grad(loss, logprobs_BT)
    table = _Table(logprobs_BT, entropies_BT, batch, each, loss_BT * weight_BT, push_BT, objective)
    answers = {
        (chosen[group], answer): table.line(
            line, len(batch.groups[group].completions[answer].tokens)
        )
        for line, (group, answer) in enumerate(batch.members)
    }
    counted = [token for line in answers.values() for token in line if token.counts]
    return StepNumbers(
        answers,
        loss.item(),
        total.item() - loss.item(),
        sum(token.clipped for token in counted) / max(len(counted), 1),
    )


class _Table:
    """Tensors of a batch, read line by line as plain numbers."""

    def __init__(
        self,
        logprobs_BT: Tensor,
        entropies_BT: Tensor,
        batch: Batch,
        each: TokenLosses,
        share_BT: Tensor,
        push_BT: Tensor,
        objective: Objective,
    ) -> None:
        shape = logprobs_BT.shape
        old_BT = logprobs_BT if batch.old_logprobs_BT is None else batch.old_logprobs_BT
        clipped = torch.zeros(shape, dtype=torch.bool)
        edges = outside_clip_edges(each.ratio, batch.advantages_BT, objective)
        if edges is not None:
            clipped = (edges[0] | edges[1]).expand(shape)
        columns = (logprobs_BT, old_BT, each.ratio.expand(shape), clipped, entropies_BT)
        self.columns = [column.detach().tolist() for column in columns]
        self.kl = None if each.kl_BT is None else each.kl_BT.detach().tolist()
        self.mask = batch.mask_BT.tolist()
        self.share = (share_BT * batch.mask_BT).detach().double().tolist()
        self.push = push_BT.double().tolist()

    def line(self, line: int, length: int) -> list[TokenNumbers]:
        return [
            TokenNumbers(
                *(column[line][t] for column in self.columns[:4]),
                kl=None if self.kl is None else self.kl[line][t],
                entropy=_known(self.columns[4][line][t]),
                counts=self.mask[line][t],
                loss=self.share[line][t],
                push=self.push[line][t],
            )
            for t in range(length)
        ]


def _known(entropy: float) -> float | None:
    return None if math.isnan(entropy) else entropy
