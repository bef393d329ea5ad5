"""How ratio and advantage make a loss: one small function for each way, all with one signature.

Each returns the loss of every token, (B, T), or of every answer, (B, 1), before any mask or mean.
With r the ratio and A the advantage, summed over an answer's tokens all have the gradient
-A grad log pi(answer) at r = 1; they differ in what they do as r moves away from it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.objective.aggregate import answer_mean
from groupwise.objective.presets import Objective
from groupwise.objective.ratios import LOG_RATIO_LIMIT


@dataclass(frozen=True)
class Terms:
    """What a surrogate may use. A shape without letters is (B, T), or (B, 1): one per answer."""

    logprobs_BT: Tensor
    log_ratio_BT: Tensor
    ratio: Tensor
    advantages: Tensor
    mask_BT: Tensor
    rho: Tensor | None = None
    """The sampler mismatch. Only VESPO looks at it; for the others the loss multiplies by it."""


def clip(x: Terms, o: Objective) -> Tensor:
    """PPO and GRPO: -min(r A, clip(r, 1 - low, 1 + high) A). Outside, no further push.

    `clip_max` also bounds r where A is negative, which the minimum leaves unbounded.
    """
    ratio = x.ratio if o.clip_max is None else x.ratio.clamp(max=o.clip_max)
    clipped = x.ratio.clamp(1 - o.clip_low, 1 + o.clip_high)
    return -torch.min(ratio * x.advantages, clipped * x.advantages)


def reinforce(x: Terms, o: Objective) -> Tensor:
    """-A log pi: the policy gradient itself, blind to how far the policy has moved."""
    return -x.advantages * x.logprobs_BT


def cispo(x: Terms, o: Objective) -> Tensor:
    """-stop_grad(min(r, max)) A log pi: a far token's weight is bounded, it is never dropped."""
    weight = x.ratio.detach().clamp(max=o.cispo_max)
    return -weight * x.advantages * x.logprobs_BT


def sapo(x: Terms, o: Objective) -> Tensor:
    """-(4 / tau) sigmoid(tau (r - 1)) A: a soft gate, steeper where A is negative."""
    tau = _by_sign(x.advantages > 0, o.sapo_tau_positive, o.sapo_tau_negative, x.ratio.dtype)
    return -(4 / tau) * torch.sigmoid(tau * (x.ratio - 1)) * x.advantages


def vespo(x: Terms, o: Objective) -> Tensor:
    """-phi(w) A log pi, w the answer's whole ratio, phi(w) = w^k exp(lambda (1 - w)), detached.

    w is the product of the tokens' ratios, not their geometric mean; the sampler mismatch is part
    of it, so that phi damps both kinds of distance at once.
    """
    floor = math.log(1e-8)
    log_w_B1 = (x.log_ratio_BT.detach() * x.mask_BT).sum(-1, keepdim=True)
    if x.rho is not None:
        log_rho = x.rho.log().clamp(floor, LOG_RATIO_LIMIT)
        log_w_B1 = log_w_B1 + log_rho.sum(-1, keepdim=True)
    log_w_B1 = log_w_B1.clamp(floor, LOG_RATIO_LIMIT)
    k, lam = (
        _by_sign(x.advantages >= 0, up, down, log_w_B1.dtype)
        for up, down in zip(o.vespo_positive, o.vespo_negative, strict=True)
    )
    phi = (lam + k * log_w_B1 - lam * log_w_B1.exp()).exp()
    return -phi * x.advantages * x.logprobs_BT


def gmpo(x: Terms, o: Objective) -> Tensor:
    """-A times the geometric mean of token ratios, each bounded on the side that A pushes towards.

    The paper's min(s l, clip(s l, -c, c)), l the log ratio and s the sign of A, is min(s l, c).
    """
    sign = x.advantages.sign()
    bounded_BT = sign * (sign * x.log_ratio_BT).clamp(max=o.gmpo_clip)
    return -answer_mean(bounded_BT, x.mask_BT).exp() * x.advantages


def _by_sign(positive: Tensor, yes: float, no: float, dtype: torch.dtype) -> Tensor:
    # torch.where on two Python numbers would round them to float32 whatever the inputs are.
    return torch.full_like(positive, no, dtype=dtype).masked_fill(positive, yes)


SURROGATES: dict[str, Callable[[Terms, Objective], Tensor]] = {
    "clip": clip,
    "reinforce": reinforce,
    "cispo": cispo,
    "sapo": sapo,
    "vespo": vespo,
    "gmpo": gmpo,
}


def trust_region(o: Objective) -> tuple[float, float] | None:
    """The ratios past which a surrogate stops following the ratio (None: it has no such edge)."""
    edges = {
        "clip": (1 - o.clip_low, 1 + o.clip_high),
        "cispo": (0.0, o.cispo_max),
        "gmpo": (math.exp(-o.gmpo_clip), math.exp(o.gmpo_clip)),
    }
    return edges.get(o.surrogate)
