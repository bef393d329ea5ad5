"""Evaluation: greedy accuracy, sampled mean, pass@k, maj@k, format, lengths.

Accuracy is judged by the task, not by the rewards, so a reward that can be gamed shows up here.
What each problem came to is kept beside the means, so that two runs can be compared problem by
problem: `groupwise compare`.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from groupwise.load import Parts
from groupwise.rewards.base import weighted
from groupwise.rewards.scorer import Scorer
from groupwise.rollout.groups import Prompted, scores_of
from groupwise.tasks.base import Split
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


def evaluate(parts: Parts, split: Split) -> Evaluation:
    """The same result on all ranks."""
    return Evaluation(**parts.waiting.first_does(lambda: asdict(evaluate_here(parts, split))))


def evaluate_here(parts: Parts, split: Split) -> Evaluation:
    """Each rank that samples evaluates its share and gets all metrics; other ranks do not call it.

    The keys of sampled metrics name k: pass@4, maj@4.
    """
    settings, rollout = parts.config.eval, parts.config.rollout
    problems = parts.problems[split][: settings.problems]
    limit = settings.max_completion_tokens or rollout.max_completion_tokens
    greedy = Sampling(max_tokens=limit, temperature=0.0, stop=rollout.stop)
    sampled = Sampling(limit, settings.temperature, settings.top_p, stop=rollout.stop)

    def work(own: list[Prompted]) -> list[dict[str, Any]]:
        sample = partial(parts.sample_groups, own, what="evaluating")
        groups = _whole_answers(sample(greedy, group_size=1, step="greedy"))
        lines = _greedy_lines(groups, parts)
        if settings.k > 1:
            groups = _whole_answers(sample(sampled, group_size=settings.k, step="sampled"))
            _add_sampled(lines, groups, parts)
        return lines

    lines = parts.world.share(problems, work)
    metrics = {
        **_means(lines, {"accuracy": "correct", "format": "format"}),
        **_means(lines, {"tokens": "tokens", "truncated": "truncated"}),
        "problems": float(len(problems)),
        **_reward_means(lines),
    }
    if settings.k > 1:
        metrics |= _sampled_metrics(lines, settings.k)
    return Evaluation(metrics, lines)


def _whole_answers(groups: list[Group]) -> list[Group]:
    """An episode in several segments is one answer; its first segment has the text."""
    whole = [tuple(c for c in group.completions if c.segment == 0) for group in groups]
    pairs = zip(groups, whole, strict=True)
    return [replace(group, completions=answers) for group, answers in pairs]


def _greedy_lines(groups: list[Group], parts: Parts) -> list[dict[str, Any]]:
    """One line for each problem with the results of its greedy answer."""
    verdicts = _judge(groups, parts.judge)
    scores = scores_of(groups, parts.scorer, parts.episodes)
    totals = weighted(scores, parts.reward_weights)
    lines: list[dict[str, Any]] = []
    for index, group in enumerate(groups):
        completion = group.completions[0]
        judged = {name: values[index][0] for name, values in verdicts.items()}
        length = {"tokens": completion.length, "truncated": completion.truncated}
        text = {"text": completion.text[:STORED_TEXT]}
        name = {"id": group.problem.id, "question": question_digest(group.problem)}
        rewards = {name: values[index] for name, values in scores.items()}
        earned = {"reward": totals[index], "rewards": rewards}
        lines.append({**name, **judged, **length, **text, **earned})
    return lines


def _add_sampled(lines: list[dict[str, Any]], groups: list[Group], parts: Parts) -> None:
    """Add the results of sampled answers: which are right or well-formed, and the majority's."""
    verdicts = _judge(groups, parts.judge)
    for index, (line, group) in enumerate(zip(lines, groups, strict=True)):
        line["sampled_format"] = verdicts["format"][index]
        if "correct" in verdicts:
            line["sampled"] = right = verdicts["correct"][index]
            answers = [parts.task.extract(completion.text) for completion in group.completions]
            line["majority"] = float(majority_is_right(answers, right))


def question_digest(problem: Problem) -> str:
    """Tells problems of the same id apart: a row's number says nothing about what it asks.

    Of the last turn alone, so that runs with different system prompts can be compared.
    """
    prompt = problem.prompt
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"] if prompt else ""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()


def _sampled_metrics(lines: list[dict[str, Any]], k: int) -> dict[str, float]:
    """Means over the problems; what the lines had for them alone is taken out."""
    metrics = {"sampled_format": _mean([v for line in lines for v in line.pop("sampled_format")])}
    judged = [line for line in lines if "sampled" in line]
    if not judged:
        return metrics
    right = [line["sampled"] for line in judged]
    return metrics | {
        "sampled": _mean([v for line in right for v in line]),
        f"pass@{k}": _mean([pass_at_k(k, sum(v > 0.5 for v in line), k) for line in right]),
        f"maj@{k}": _mean([line.pop("majority") for line in judged]),
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
    lines: dict[str, list[list[float]]] = {}
    for name, values in scores_of(groups, judge).items():
        following = iter(values)
        lines[name] = [[float(next(following) or 0.0) for _ in g.completions] for g in groups]
    return lines


def _reward_means(lines: list[dict[str, Any]]) -> dict[str, float]:
    names = lines[0]["rewards"] if lines else ()
    known = {n: [v for line in lines if (v := line["rewards"][n]) is not None] for n in names}
    means = {f"rewards/{name}": _mean(values) for name, values in known.items() if values}
    return {"reward": _mean([t for line in lines if (t := line["reward"]) is not None]), **means}


def _means(lines: list[dict[str, Any]], names: Mapping[str, str]) -> dict[str, float]:
    """The means of these entries of the lines, under the names of the metrics."""
    return {
        metric: _mean([float(line[name]) for line in lines])
        for metric, name in names.items()
        if all(name in line for line in lines)
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
