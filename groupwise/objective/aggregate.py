"""From token losses to one number: the only place where the objective divides by a count.

Every count is that of the whole optimizer step over all ranks, taken before it is cut into
micro-batches. So the losses of micro-batches, and of ranks, simply add up (add, not average: a
data-parallel wrapper that averages gradients must be given world_size times the loss), and how the
step is cut never changes the gradient. `microbatch_token_mean` is the one exception.

A loss is (B, T), or (B, 1) where it is the same for every token of an answer.
"""

from collections.abc import Callable

from torch import Tensor

from groupwise.batch import Denominator


def answer_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean over each answer's tokens, (B, 1); 0 for an answer without any."""
    total_B1 = (values_BT * mask_BT).sum(-1, keepdim=True)
    return total_B1 / mask_BT.sum(-1, keepdim=True).clamp(min=1)


def sequence_mean(loss_BT: Tensor, mask_BT: Tensor, over: Denominator) -> Tensor:
    """GRPO: every answer counts the same, so a token of a long answer counts less."""
    return answer_mean(loss_BT, mask_BT).sum() / max(over.answers, 1)


def token_mean(loss_BT: Tensor, mask_BT: Tensor, over: Denominator) -> Tensor:
    """DAPO: every token counts the same, so a long answer counts more."""
    return (loss_BT * mask_BT).sum() / max(over.tokens, 1)


def fixed_length(loss_BT: Tensor, mask_BT: Tensor, over: Denominator) -> Tensor:
    """Dr. GRPO: like token_mean, but a step of short answers is not scaled up."""
    return (loss_BT * mask_BT).sum() / max(over.answers * over.max_tokens, 1)


def sequence_sum(loss_BT: Tensor, mask_BT: Tensor, over: Denominator) -> Tensor:
    """LUSPO: answers are averaged, each as the sum of its tokens."""
    return (loss_BT * mask_BT).sum() / max(over.answers, 1)


def microbatch_token_mean(loss_BT: Tensor, mask_BT: Tensor, over: Denominator) -> Tensor:
    """BNPO: the mean of the micro-batches' own token means.

    A token weighs more in a micro-batch with few tokens, so memory settings change what is learned.
    Kept to reproduce others' runs.
    """
    return (loss_BT * mask_BT).sum() / mask_BT.sum().clamp(min=1) / over.microbatches


AGGREGATES: dict[str, Callable[[Tensor, Tensor, Denominator], Tensor]] = {
    "sequence_mean": sequence_mean,
    "token_mean": token_mean,
    "fixed_length": fixed_length,
    "sequence_sum": sequence_sum,
    "microbatch_token_mean": microbatch_token_mean,
}

AGGREGATE_FORMULAS = {
    "sequence_mean": "the mean over answers of each answer's mean over its tokens",
    "token_mean": "the sum over all tokens, divided by their number",
    "fixed_length": "the sum over all tokens, divided by answers × the length limit",
    "sequence_sum": "the mean over answers of each answer's sum over its tokens",
    "microbatch_token_mean": "the mean over micro-batches of their tokens' mean",
}
"""As `groupwise explain` prints them."""
