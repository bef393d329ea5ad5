"""The objective once more, as plainly as possible: loops over ragged answers, no padding, no masks.

It shares no code with the package. Each number is a float64 scalar, so autograd gives its gradient.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groupwise.objective.objective import Objective


@dataclass(frozen=True)
class Answer:
    """One answer's tokens. Lists are as long as the answer; None where the objective has no use."""

    logprobs: list[Tensor]
    advantages: list[float]
    old: list[float] | None = None
    sampler: list[float] | None = None
    ref: list[float] | None = None
    entropies: list[Tensor] = field(default_factory=list)
    keep: list[bool] | None = None


def setting(o: Objective, name: str) -> Any:
    """A parameter of the objective's surrogate."""
    return o.surrogate.model_dump()[name]


def scalar(value: float | Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def mean(values: list[Tensor]) -> Tensor:
    total = scalar(0.0)
    for value in values:
        total = total + value
    return total / len(values)


def rhos(a: Answer, old: list[float], o: Objective) -> list[float]:
    if o.mismatch == "none" or a.sampler is None:
        return [1.0] * len(old)
    gaps = [p - q for p, q in zip(old, a.sampler, strict=True)]
    raw = [math.exp(sum(gaps))] if o.mismatch == "sequence" else [math.exp(g) for g in gaps]
    bounded = []
    for rho in raw:
        inside = o.mismatch_min <= rho <= o.mismatch_max
        if o.mismatch_mode == "mask":
            bounded.append(rho if inside else 0.0)
        else:
            bounded.append(min(max(rho, o.mismatch_min), o.mismatch_max))
    return bounded


def vespo_phi(log_ratios: list[float], rho: list[float], A: float, o: Objective) -> float:
    log_w = sum(min(max(value, -20.0), 20.0) for value in log_ratios)
    if o.mismatch != "none":
        log_w += sum(max(math.log(r) if r > 0 else -math.inf, math.log(1e-8)) for r in rho)
    log_w = min(max(log_w, math.log(1e-8)), 20.0)
    side = "positive" if A >= 0 else "negative"
    k, lam = setting(o, f"vespo_k_{side}"), setting(o, f"vespo_lambda_{side}")
    return math.exp(lam + k * log_w - lam * math.exp(log_w))


def gmpo_ratio(log_ratios: list[Tensor], advantages: list[float], o: Objective) -> Tensor:
    bounded = []
    for log_ratio, A in zip(log_ratios, advantages, strict=True):
        sign = (A > 0) - (A < 0)
        clipped = torch.clamp(sign * log_ratio, -setting(o, "gmpo_clip"), setting(o, "gmpo_clip"))
        smaller = clipped if clipped < sign * log_ratio else sign * log_ratio
        bounded.append(sign * smaller)
    return torch.exp(mean(bounded))


def surrogate(r: Tensor, A: float, logprob: Tensor, o: Objective) -> Tensor:
    if o.surrogate.kind == "clip":
        free = (
            r
            if setting(o, "clip_max") is None or r <= setting(o, "clip_max")
            else scalar(setting(o, "clip_max"))
        )
        low, high = 1 - setting(o, "clip_low"), 1 + setting(o, "clip_high")
        clipped = scalar(low) if r < low else scalar(high) if r > high else r
        return -(free * A if free * A < clipped * A else clipped * A)
    if o.surrogate.kind == "reinforce":
        return -A * logprob
    if o.surrogate.kind == "cispo":
        return -min(r.item(), setting(o, "cispo_max")) * A * logprob
    assert o.surrogate.kind == "sapo"
    tau = setting(o, "sapo_tau_positive") if A > 0 else setting(o, "sapo_tau_negative")
    return -(4 / tau) / (1 + torch.exp(-tau * (r - 1))) * A


def answer_losses(a: Answer, o: Objective) -> list[Tensor]:
    """The loss of each token of one answer."""
    old = [p.item() for p in a.logprobs] if a.old is None else a.old
    log_ratios = [p - q for p, q in zip(a.logprobs, old, strict=True)]
    ratios = [torch.exp(value) for value in log_ratios]
    if o.ratio == "sequence":
        ratios = [torch.exp(mean(log_ratios))] * len(ratios)
    rho = rhos(a, old, o)
    drawn_by = old if a.sampler is None else a.sampler
    moved = sum(q - p.item() for p, q in zip(a.logprobs, drawn_by, strict=True)) / len(a.logprobs)

    losses = []
    for t, (r, A, logprob) in enumerate(zip(ratios, a.advantages, a.logprobs, strict=True)):
        if o.surrogate.kind == "vespo":
            loss = -vespo_phi([v.item() for v in log_ratios], rho, A, o) * A * logprob
        elif o.surrogate.kind == "gmpo":
            loss = -gmpo_ratio(log_ratios, a.advantages, o) * A
        else:
            loss = surrogate(r, A, logprob, o)
        if o.surrogate.kind != "vespo":
            loss = loss * rho[t if len(rho) > 1 else 0]
        if o.off_policy_limit is not None and A < 0 and moved > o.off_policy_limit:
            loss = loss * 0.0
        if a.keep is not None and not a.keep[t]:
            loss = loss * 0.0
        if o.kl_weight > 0 and o.kl_in == "loss":
            assert a.ref is not None
            d = a.ref[t] - logprob
            kl = {"k1": -d, "k2": d * d / 2, "k3": torch.exp(d) - d - 1}[o.kl_estimator]
            loss = loss + o.kl_weight * kl * (r if o.kl_unbiased else 1.0)
        losses.append(loss)
    return losses


def reference_loss(
    answers: list[Answer], o: Objective, max_tokens: int, entropy_weight: float
) -> Tensor:
    """The loss of a whole optimizer step, undivided."""
    per_answer = [answer_losses(a, o) if a.logprobs else [] for a in answers]
    tokens = sum(len(losses) for losses in per_answer)
    total = scalar(0.0)
    for losses in per_answer:
        for loss in losses:
            share = {
                "sequence_mean": len(losses) * len(answers),
                "token_mean": tokens,
                "microbatch_token_mean": tokens,
                "fixed_length": len(answers) * max_tokens,
                "sequence_sum": len(answers),
            }[o.aggregate]
            total = total + loss / share
    if entropy_weight:
        acted_on = [
            h for a in answers for t, h in enumerate(a.entropies) if a.keep is None or a.keep[t]
        ]
        total = total - entropy_weight * mean(acted_on)
    return total
