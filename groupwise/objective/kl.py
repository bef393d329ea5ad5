"""Three estimators of KL(policy || reference) from one sampled token, as log pi and log ref.

All have the KL as their mean over the policy's samples, except k2, which is biased but close. Used
as a loss without correction, k1's gradient has mean 0 and k3's is that of the other direction's KL;
`kl_unbiased` multiplies by the ratio to repair that.
"""

from collections.abc import Callable

from torch import Tensor

EXPONENT_LIMIT = 20.0
"""Bounds k3's exponential: past it the estimate stays finite and pulls no further."""


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """-d with d = log ref - log pi: unbiased, but often negative and noisy."""
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """d^2 / 2: never negative; its gradient is the reverse KL's, as the policy samples."""
    return (logprobs - ref_logprobs).square() / 2


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """exp(d) - d - 1: unbiased and never negative. GRPO's choice."""
    d = (ref_logprobs - logprobs).clamp(max=EXPONENT_LIMIT)
    return d.exp() - d - 1


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
