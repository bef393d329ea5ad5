"""What every token of an optimizer step adds to the loss, and how hard it is pushed.

A `Moment` is an optimizer step with the log-probs that it worked with. `token_numbers` lays it out
as one batch, calls the objective's own functions, and asks autograd for two things: the weight that
aggregation gives each token's loss (it is linear, so loss times weight are shares that add up), and
dL/dlogp, the push on each token's log-prob, which is all that the objective tells the model.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from groupwise.batch import Microbatch, microbatches
from groupwise.objective.aggregate import AGGREGATES, Denominator
from groupwise.objective.loss import Tokens, outside_trust, policy_loss, token_losses
from groupwise.objective.presets import Objective
from groupwise.training.step import Scored
from groupwise.types import Completion, Group

Place = tuple[int, int]
"""(group, answer)"""


@dataclass(frozen=True)
class Moment:
    """One optimizer step. `scored` may lack groups that the step did not compute.

    `loss` and `grad_norm` are what training found (None: not known).
    """

    groups: Sequence[Group]
    scored: Scored
    keep_above: float | None = None
    entropy_weight: float = 0.0
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None


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


def token_numbers(moment: Moment, objective: Objective, over: Denominator) -> StepNumbers:
    """Every number of the groups in `moment.scored`. The others add exactly 0."""
    chosen = sorted({group for group, _ in moment.scored})
    if not chosen:
        return StepNumbers({}, 0.0, 0.0, 0.0)
    micro = _as_one_batch([moment.groups[g] for g in chosen], objective, moment.keep_above)
    places = [(chosen[group], answer) for group, answer in micro.members]
    tokens = _tokens(micro, places, moment.scored)
    each = token_losses(tokens, objective)
    loss_BT = each.loss.expand_as(tokens.logprobs_BT).contiguous()
    whole = replace(over, microbatches=1)
    with torch.enable_grad():
        per_token_BT = loss_BT.detach().requires_grad_()
        total = AGGREGATES[objective.aggregate](per_token_BT, tokens.mask_BT, whole)
        (weight_BT,) = torch.autograd.grad(total, per_token_BT)
    loss, _ = policy_loss(tokens, objective, whole, moment.entropy_weight)
    (push_BT,) = torch.autograd.grad(loss, tokens.logprobs_BT)
    table = _Table(tokens, each.ratio, each.kl_BT, loss_BT * weight_BT, push_BT, objective)
    answers = {
        place: table.line(line, len(_completion(moment, place).tokens))
        for line, place in enumerate(places)
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
        tokens: Tokens,
        ratio: Tensor,
        kl_BT: Tensor | None,
        share_BT: Tensor,
        push_BT: Tensor,
        objective: Objective,
    ) -> None:
        shape = tokens.logprobs_BT.shape
        old_BT = tokens.logprobs_BT if tokens.old_logprobs_BT is None else tokens.old_logprobs_BT
        clipped = torch.zeros(shape, dtype=torch.bool)
        edges = outside_trust(ratio, tokens.advantages_BT, objective)
        if edges is not None:
            clipped = (edges[0] | edges[1]).expand(shape)
        assert tokens.entropies_BT is not None
        columns = (tokens.logprobs_BT, old_BT, ratio.expand(shape), clipped, tokens.entropies_BT)
        self.columns = [column.detach().tolist() for column in columns]
        self.kl = None if kl_BT is None else kl_BT.detach().tolist()
        self.mask = tokens.mask_BT.tolist()
        self.share = (share_BT * tokens.mask_BT).detach().double().tolist()
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


def _as_one_batch(
    groups: Sequence[Group], objective: Objective, keep_above: float | None
) -> Microbatch:
    (micro,) = microbatches(
        groups,
        layout="padded",
        budget=sys.maxsize,
        mask_truncated=objective.mask_truncated,
        keep_above=keep_above,
    )
    return micro


def _tokens(micro: Microbatch, places: Sequence[Place], scored: Scored) -> Tokens:
    width = micro.mask_BT.shape[1]

    def lines(which: int) -> Tensor:
        rows = [list(scored[place][which])[:width] for place in places]
        return torch.tensor([row + [0.0] * (width - len(row)) for row in rows])

    return Tokens(
        logprobs_BT=lines(0).requires_grad_(),
        mask_BT=micro.mask_BT,
        advantages_BT=micro.advantages_BT,
        old_logprobs_BT=micro.old_logprobs_BT,
        sampler_logprobs_BT=micro.sampler_logprobs_BT,
        ref_logprobs_BT=micro.ref_logprobs_BT,
        entropies_BT=lines(1),
        keep_BT=micro.keep_BT,
    )


def _completion(moment: Moment, place: Place) -> Completion:
    return moment.groups[place[0]].completions[place[1]]
