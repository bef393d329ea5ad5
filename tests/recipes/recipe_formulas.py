"""Each system's loss in a few lines, from its own description, with its own numbers written out.

It shares no code with the package and reads no recipe: lists of answers, float64 scalars, loops.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Answer:
    """One answer: its group, what it earned, and its tokens' log-probs under four policies."""

    group: int
    reward: float
    cut_off: bool
    logprobs: Tensor
    old: Tensor
    sampler: Tensor
    ref: Tensor


Formula = Callable[[Sequence[Answer]], Tensor]


def advantage(answer: Answer, answers: Sequence[Answer]) -> float:
    rewards = [other.reward for other in answers if other.group == answer.group]
    return (answer.reward - statistics.fmean(rewards)) / (statistics.stdev(rewards) + 1e-4)


def kl(answer: Answer) -> Tensor:
    """The k3 estimate of each token."""
    d = answer.ref - answer.logprobs
    return d.exp() - d - 1


def clipped(answer: Answer, A: float, low: float, high: float) -> Tensor:
    """min(ratio A, clip(ratio) A) of each token."""
    ratio = (answer.logprobs - answer.old).exp()
    return torch.minimum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def clipped_answer_mean(eps: float, beta: float) -> Formula:
    """-(ratio x advantage - beta x KL), the mean over each answer, then over answers."""

    def formula(answers: Sequence[Answer]) -> Tensor:
        each = [
            -(clipped(a, advantage(a, answers), eps, eps) - beta * kl(a)).mean() for a in answers
        ]
        return torch.stack(each).mean()

    return formula


def nano_aha_moment(answers: Sequence[Answer]) -> Tensor:
    """No ratio: -A log pi + 0.001 KL, summed over all tokens, divided by their number."""
    total = sum((-advantage(a, answers) * a.logprobs + 0.001 * kl(a)).sum() for a in answers)
    return torch.as_tensor(total) / sum(len(a.logprobs) for a in answers)


def grpo_zero(answers: Sequence[Answer]) -> Tensor:
    """-A log pi over the tokens of finished answers, divided by the number of those tokens."""
    finished = [a for a in answers if not a.cut_off]
    total = sum((-advantage(a, answers) * a.logprobs).sum() for a in finished)
    return torch.as_tensor(total) / sum(len(a.logprobs) for a in finished)


def cookbook(answers: Sequence[Answer]) -> Tensor:
    """TRL's default: clipped at 0.2 on both sides, every token of the batch counts the same."""
    total = sum(-clipped(a, advantage(a, answers), 0.2, 0.2).sum() for a in answers)
    return torch.as_tensor(total) / sum(len(a.logprobs) for a in answers)


def best_small(answers: Sequence[Answer]) -> Tensor:
    """DAPO's clip-higher and token mean over finished answers, corrected for the sampler."""
    finished = [a for a in answers if not a.cut_off]
    total = sum(
        -(
            (a.old - a.sampler).exp().clamp(max=2.0) * clipped(a, advantage(a, answers), 0.2, 0.28)
        ).sum()
        for a in finished
    )
    return torch.as_tensor(total) / sum(len(a.logprobs) for a in finished)


FORMULAS: dict[str, Formula] = {
    "demo": clipped_answer_mean(0.2, 0.0),
    "guess_number": clipped_answer_mean(0.2, 0.0),
    "calculator": clipped_answer_mean(0.2, 0.0),
    "neural_reward": clipped_answer_mean(0.2, 0.04),
    "cot_reward": clipped_answer_mean(0.2, 0.04),
    "cot_deepspeed": clipped_answer_mean(0.2, 0.04),
    "llama3_8b": clipped_answer_mean(0.2, 0.04),
    "qwen_gpu": clipped_answer_mean(0.2, 0.01),
    "qwen_cpu": clipped_answer_mean(0.2, 0.01),
    "neuron": clipped_answer_mean(0.2, 0.01),
    "preference": clipped_answer_mean(0.2, 0.1),
    "simple_grpo": clipped_answer_mean(0.2, 0.04),
    "lm_book": clipped_answer_mean(0.1, 0.04),
    "nano_aha_moment": nano_aha_moment,
    "grpo_zero": grpo_zero,
    "cookbook": cookbook,
    "best_small": best_small,
}
