"""Held-out evaluation: greedy accuracy, sampled mean, pass@k, maj@k, format, lengths.

Accuracy is judged by the task, not by the rewards, so a reward that can be gamed shows up here.
What each problem came to is kept beside the means, so that two runs can be compared problem by
problem: `groupwise compare`.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.config import EvalSettings, RolloutSettings
from groupwise.distributed.world import ALONE, World
from groupwise.policy.load import Policy
from groupwise.rewards.base import Reward, weighted
from groupwise.rewards.scorer import Scorer
from groupwise.rollout.collect import Prompted, gather_groups, own_problems, sample_groups
from groupwise.rollout.engine import Engine
from groupwise.tasks.base import Task
from groupwise.types import Group, Problem, Sampling

STORED_TEXT = 4000
"""Characters of an answer that are kept; the rest is dropped."""


@dataclass(frozen=True)
class Evaluation:
    """Means over the problems, and one line for each of them, as plain JSON values.

    Evaluation({"accuracy": 0.5, ...}, [{"id": "3+4", "question": "5f2c...", "correct": 1.0,
        "format": 1.0, "tokens": 12, "truncated": False, "reward": 1.2,
        "rewards": {"correct": 1.0, "format": 1.0}, "sampled": [1.0, 0.0], "text": "..."}, ...])
    """

    metrics: dict[str, float]
    problems: list[dict[str, Any]]


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
    world: World = ALONE,
) -> Evaluation:
    """Metrics on `problems`. The keys of sampled metrics name k: pass@4, maj@4.

    Each rank samples and judges its share; all ranks get the same metrics.
    """
    limit = settings.max_completion_tokens or rollout.max_completion_tokens

    def sample(sampling: Sampling, count: int, name: str) -> list[Group]:
        own = own_problems(world, problems)
        groups = (
            sample_groups(own, engine, policy, sampling, group_size=count, seed=seed, step=name)
            if own
            else []
        )
        return gather_groups(world, groups, problems)

    groups = sample(Sampling(max_tokens=limit, temperature=0.0, stop=rollout.stop), 1, "greedy")
    verdicts = _judge(groups, judge, world)
    completions = [group.completions[0] for group in groups]
    metrics = {
        "format": _mean([line[0] for line in verdicts["format"]]),
        "tokens": _mean([float(len(completion.tokens)) for completion in completions]),
        "truncated": _mean([float(completion.truncated) for completion in completions]),
        "problems": float(len(problems)),
    }
    if "correct" in verdicts:
        metrics = {"accuracy": _mean([line[0] for line in verdicts["correct"]]), **metrics}
    lines = _greedy_lines(groups, verdicts)
    if rewards is not None:
        metrics |= _reward_means(groups, rewards, lines, world)
    if settings.k > 1:
        sampled = Sampling(limit, settings.temperature, settings.top_p, stop=rollout.stop)
        groups = sample(sampled, settings.k, "sampled")
        verdicts = _judge(groups, judge, world)
        metrics |= _sampled_metrics(groups, verdicts, task, settings.k)
        for line, right in zip(lines, verdicts.get("correct", []), strict=False):
            line["sampled"] = right
    return Evaluation(metrics, lines)


def _greedy_lines(
    groups: list[Group], verdicts: dict[str, list[list[float]]]
) -> list[dict[str, Any]]:
    """What each problem's greedy answer came to; rewards and sampled answers are added later."""
    lines = []
    for index, group in enumerate(groups):
        completion = group.completions[0]
        judged = {name: values[index][0] for name, values in verdicts.items()}
        length = {"tokens": len(completion.tokens), "truncated": completion.truncated}
        text = {"text": completion.text[:STORED_TEXT]}
        name = {"id": group.problem.id, "question": question_digest(group.problem)}
        lines.append({**name, **judged, **length, **text})
    return lines


def question_digest(problem: Problem) -> str:
    """Tells problems of the same id apart: a row's number says nothing about what it asks.

    Of the last turn alone, so that runs with different system prompts can be compared.
    """
    prompt = problem.prompt
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"] if prompt else ""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()


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


def _scores(groups: list[Group], scorer: Scorer, world: World) -> dict[str, list[float | None]]:
    """Every reward on every answer, flat; each rank scores its share of the groups."""

    def score(mine: list[Group]) -> list[dict[str, list[float | None]]]:
        flat = [(group.problem, c.text) for group in mine for c in group.completions]
        found = scorer.score([problem for problem, _ in flat], [text for _, text in flat])
        following = {name: iter(values) for name, values in found.items()}
        return [
            {name: [next(values) for _ in g.completions] for name, values in following.items()}
            for g in mine
        ]

    shared = world.share(groups, score)
    names = [reward.name for reward in scorer.rewards]
    return {name: [v for line in shared for v in line[name]] for name in names}


def _judge(groups: list[Group], judge: Scorer, world: World) -> dict[str, list[list[float]]]:
    lines: dict[str, list[list[float]]] = {}
    for name, values in _scores(groups, judge, world).items():
        following = iter(values)
        lines[name] = [[float(next(following) or 0.0) for _ in g.completions] for g in groups]
    return lines


def _reward_means(
    groups: list[Group], scorer: Scorer, lines: list[dict[str, Any]], world: World
) -> dict[str, float]:
    """The mean of each reward; what each problem got is added to its line."""
    scores = _scores(groups, scorer, world)
    totals = weighted(scores, {reward.name: reward.weight for reward in scorer.rewards})
    for index, line in enumerate(lines):
        line["reward"] = totals[index]
        line["rewards"] = {name: values[index] for name, values in scores.items()}
    known = {name: [v for v in values if v is not None] for name, values in scores.items()}
    means = {f"rewards/{name}": _mean(values) for name, values in known.items() if values}
    return {"reward": _mean([t for t in totals if t is not None]), **means}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
