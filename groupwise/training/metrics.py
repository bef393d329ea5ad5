"""Numbers that describe a step's answers, and the machine's memory."""

import sys
from collections.abc import Mapping, Sequence

import torch

from groupwise.types import Group


def rollout_metrics(
    groups: Sequence[Group], drawn: int, weights: Mapping[str, float]
) -> dict[str, float]:
    """spread/NAME is a reward's part in the spread within groups, weight included; varied/NAME
    the share of groups in which it differs between answers.
    """
    completions = [completion for group in groups for completion in group.completions]
    rewards = [reward for group in groups for reward in group.rewards if reward is not None]
    lengths = [len(completion.tokens) for completion in completions]
    metrics = {
        "reward": _mean(rewards),
        "reward_std": _mean([_std([r for r in g.rewards if r is not None]) for g in groups]),
        "no_spread": _mean([float(not group.has_spread) for group in groups]),
        "truncated": _mean([float(completion.truncated) for completion in completions]),
        "tokens": _mean(lengths),
        "tokens_max": float(max(lengths, default=0)),
        "problems_drawn": float(drawn),
        "memory_gb": memory_gb(),
    }
    for name in groups[0].scores:
        scores = [score for group in groups for score in group.scores[name] if score is not None]
        metrics[f"rewards/{name}"] = _mean(scores)
        known = [[score for score in g.scores[name] if score is not None] for g in groups]
        metrics[f"spread/{name}"] = abs(weights.get(name, 1.0)) * _mean([_std(s) for s in known])
        metrics[f"varied/{name}"] = _mean([float(len(set(s)) > 1) for s in known])
    if "rewards/correct" in metrics:
        metrics["accuracy"] = metrics["rewards/correct"]
    return metrics


def staleness(groups: Sequence[Group], step: int) -> dict[str, float]:
    """Updates between the weights that sampled the answers and those that step `step` begins with.

    Its mean and its largest.
    """
    ages = [float(step - c.version) for group in groups for c in group.completions]
    return {"staleness": _mean(ages), "staleness_max": max(ages, default=0.0)}


def memory_gb() -> float:
    """Peak GPU memory, or the process's peak resident memory where there is no GPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)  # bytes there, kilobytes here


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
