"""Numbers that describe a step's answers and updates, and the machine's memory."""

import math
import sys
from collections.abc import Mapping, Sequence

import torch

from groupwise.distributed.world import ALONE, World
from groupwise.objective.loss import Metrics
from groupwise.training.loss_scale import LossScale
from groupwise.types import Completion, Group


def rollout_metrics(
    groups: Sequence[Group], drawn: int, weights: Mapping[str, float], world: World = ALONE
) -> dict[str, float]:
    """spread/NAME is a reward's part in the spread within groups, weight included; varied/NAME
    the share of groups in which it differs between answers. Each rank has its own groups.
    """
    lengths = [len(c.tokens) for group in groups for c in group.completions]
    metrics = world.means(_rollout_values(groups, weights)) | {
        "tokens_max": float(world.max(max(lengths, default=0))),
        "problems_drawn": float(drawn),
        "memory_gb": memory_gb(),
    }
    if "rewards/correct" in metrics:
        metrics["accuracy"] = metrics["rewards/correct"]
    return metrics


def _rollout_values(
    groups: Sequence[Group], weights: Mapping[str, float]
) -> dict[str, list[float]]:
    """What the metrics are means of."""
    completions = [completion for group in groups for completion in group.completions]
    rewards = [reward for group in groups for reward in group.rewards if reward is not None]
    values = {
        "reward": rewards,
        "reward_std": [std([r for r in g.rewards if r is not None]) for g in groups],
        "no_spread": [float(not group.has_spread) for group in groups],
        "truncated": [float(completion.truncated) for completion in completions],
        "tokens": [float(len(completion.tokens)) for completion in completions],
    }
    for name in groups[0].scores if groups else ():
        known = [[score for score in g.scores[name] if score is not None] for g in groups]
        weight = abs(weights.get(name, 1.0))
        values[f"rewards/{name}"] = [score for scores in known for score in scores]
        values[f"spread/{name}"] = [weight * std(scores) for scores in known]
        values[f"varied/{name}"] = [float(len(set(scores)) > 1) for scores in known]
    return values


def staleness(groups: Sequence[Group], step: int, world: World = ALONE) -> dict[str, float]:
    """Updates between the weights that sampled the answers and those that step `step` begins with.

    Its mean and its largest, by each answer's first token that is learned from.
    """
    answers = [c for group in groups for c in group.completions if c.tokens]
    ages = [float(step - _version(c)) for c in answers]
    largest = max(world.gather(max(ages, default=0.0)))
    return {**world.means({"staleness": ages}), "staleness_max": largest}


def _version(completion: Completion) -> int:
    """Of the weights that drew its first token that counts: older ones may have been masked."""
    sampled = completion.sampled or (True,)
    first = sampled.index(True) if True in sampled else 0
    begun = [version for index, version in completion.versions if index <= first]
    return begun[-1] if begun else completion.version


def add_metrics(totals: Metrics, more: Metrics) -> None:
    for name, (total, count) in more.items():
        before = totals.get(name)
        totals[name] = (total, count) if before is None else (before[0] + total, before[1] + count)


def over_ranks(metrics: Metrics, world: World) -> Metrics:
    """The sums and counts of all ranks together; the loss stays a sum."""
    if world.size == 1:
        return metrics
    added: Metrics = {}
    for part in world.gather({name: [s.item(), c.item()] for name, (s, c) in metrics.items()}):
        pairs = {name: torch.tensor(pair, dtype=torch.float64) for name, pair in part.items()}
        add_metrics(added, {name: (pair[0], pair[1]) for name, pair in pairs.items()})
    return added | {"loss": (added["loss"][0], torch.ones((), dtype=torch.float64))}


def update_metrics(
    totals: Metrics, norms: Sequence[float], lr: float, scale: LossScale | None
) -> dict[str, float]:
    """Means over the optimizer steps of one rollout."""
    metrics = means(totals)
    if not norms:
        return {"loss": 0.0, "grad_norm": 0.0, "lr": 0.0, "updates": 0, "skipped": 0, **metrics}
    taken = [norm for norm in norms if math.isfinite(norm)]
    skipped = len(norms) - len(taken)
    if scale is not None:
        metrics["loss_scale"] = scale.value
    norm = sum(taken) / len(taken) if taken else norms[0]
    return {"grad_norm": norm, "lr": lr, "updates": len(taken), "skipped": skipped, **metrics}


def means(totals: Metrics) -> dict[str, float]:
    return {name: (s / c.clamp(min=1e-12)).item() for name, (s, c) in totals.items()}


def memory_gb() -> float:
    """Peak GPU memory, or the process's peak resident memory where there is no GPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)  # bytes there, kilobytes here


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return (sum((v - middle) ** 2 for v in values) / (len(values) - 1)) ** 0.5
