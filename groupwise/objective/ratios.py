"""How much more likely the policy makes a token, or an answer, than when it was sampled.

Log ratios are clamped to +-20 before the exponential. No sound run comes near; past it, float32
overflows, and infinity times a clipped branch's zero gradient would be NaN.
"""

from typing import Literal

from torch import Tensor

from groupwise.objective.aggregate import answer_mean

LOG_RATIO_LIMIT = 20.0


def log_ratios(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log pi - log pi_old for each token; 0 where the mask is off, whatever is stored there."""
    difference_BT = (logprobs_BT - old_logprobs_BT).masked_fill(~mask_BT, 0.0)
    return difference_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def importance_ratio(
    log_ratio_BT: Tensor, mask_BT: Tensor, level: Literal["token", "sequence"]
) -> Tensor:
    """The ratio of each token, (B, T), or the geometric mean over an answer's tokens, (B, 1)."""
    if level == "token":
        return log_ratio_BT.exp()
    return answer_mean(log_ratio_BT, mask_BT).exp()
