"""Held-out evaluation: greedy accuracy, sampled mean, pass@k, maj@k, format, lengths.

Accuracy is judged by the task, not by the rewards, so a reward that can be gamed shows up here.
"""

import math
from collections import Counter
from collections.abc import Sequence

from groupwise.config import EvalSettings, RolloutSettings
from groupwise.policy.load import Policy
from groupwise.rewards.base import Reward, weighted
from groupwise.rewards.scorer import Scorer
from groupwise.rollout.collect import Prompted, sample_groups
from groupwise.rollout.engine import Engine
from groupwise.tasks.base import Task
from groupwise.types import Group, Sampling


def judges(task: Task) -> list[Reward]:
    """What evaluation scores by: the task's own judges, weightless."""
    named = {"correct": task.correct, "format": task.formatted}
    return [Reward(name, judge, weight=0.0) for name, judge in named.items() if judge is not None]


def evaluate(
    problems: Sequence[Prompted],
    engine: Engine,
    policy: Policy,
    task: Task,
    judge: Scorer,
    settings: EvalSettings,
    rollout: RolloutSettings,
    *,
    seed: int,
    rewards: Scorer | None = None,
) -> dict[str, float]:
    """Metrics on `problems`. The keys of sampled metrics name k: pass@4, maj@4."""
    limit = settings.max_completion_tokens or rollout.max_completion_tokens
    greedy = Sampling(max_tokens=limit, temperature=0.0, stop=rollout.stop)
    groups = sample_groups(problems, engine, policy, greedy, group_size=1, seed=seed, step="greedy")
    verdicts = _judge(groups, judge)
    completions = [group.completions[0] for group in groups]
    metrics = {
        "format": _mean([line[0] for line in verdicts["format"]]),
        "tokens": _mean([float(len(completion.tokens)) for completion in completions]),
        "truncated": _mean([float(completion.truncated) for completion in completions]),
        "problems": float(len(problems)),
    }
    if "correct" in verdicts:
        metrics = {"accuracy": _mean([line[0] for line in verdicts["correct"]]), **metrics}
    if rewards is not None:
        metrics |= _reward_means(groups, rewards)
    if settings.k > 1:
        sampled = Sampling(limit, settings.temperature, settings.top_p, stop=rollout.stop)
        groups = sample_groups(
            problems, engine, policy, sampled, group_size=settings.k, seed=seed, step="sampled"
        )
        metrics |= _sampled_metrics(groups, _judge(groups, judge), task, settings.k)
    return metrics


def _sampled_metrics(
    groups: list[Group], verdicts: dict[str, list[list[float]]], task: Task, k: int
) -> dict[str, float]:
    metrics = {"sampled_format": _mean([v for line in verdicts["format"] for v in line])}
    if "correct" not in verdicts:
        return metrics
    right = verdicts["correct"]
    majorities = [
        majority_is_right([task.extract(c.text) for c in group.completions], line)
        for group, line in zip(groups, right, strict=True)
    ]
    return metrics | {
        "sampled": _mean([v for line in right for v in line]),
        f"pass@{k}": _mean([pass_at_k(k, sum(v > 0.5 for v in line), k) for line in right]),
        f"maj@{k}": _mean([float(m) for m in majorities]),
    }


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Unbiased chance that at least one of k answers is right, from `right` of `samples`."""
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def majority_is_right(answers: Sequence[str | None], right: Sequence[float]) -> bool:
    """Whether the commonest final answer is right; the earliest wins a tie."""
    given = [answer for answer in answers if answer is not None]
    if not given:
        return False
    common = Counter(given).most_common(1)[0][0]
    return right[list(answers).index(common)] > 0.5


def _judge(groups: list[Group], judge: Scorer) -> dict[str, list[list[float]]]:
    flat = [(group.problem, c.text) for group in groups for c in group.completions]
    scores = judge.score([problem for problem, _ in flat], [text for _, text in flat])
    lines: dict[str, list[list[float]]] = {}
    for name, values in scores.items():
        following = iter(values)
        lines[name] = [[float(next(following) or 0.0) for _ in g.completions] for g in groups]
    return lines


def _reward_means(groups: list[Group], scorer: Scorer) -> dict[str, float]:
    flat = [(group.problem, c.text) for group in groups for c in group.completions]
    scores = scorer.score([problem for problem, _ in flat], [text for _, text in flat])
    totals = weighted(scores, {reward.name: reward.weight for reward in scorer.rewards})
    known = {name: [v for v in values if v is not None] for name, values in scores.items()}
    means = {f"rewards/{name}": _mean(values) for name, values in known.items() if values}
    return {"reward": _mean([t for t in totals if t is not None]), **means}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
