"""`groupwise reward pairs`: pairs of a model's own answers, at temperatures spread over a range.

For P pairs to a problem 2P answers are sampled, at 2P temperatures evenly from the lowest to the
highest; the k-th of the cooler half is paired with the k-th of the warmer one. So both answers of a
pair differ in temperature, and all pairs by the same gap. The task's verifier, or the recipe's
rewards, say which is better; pairs that they do not tell apart are left out.
"""

import json
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.config import Config
from groupwise.config.environment import NoEnvironment
from groupwise.errors import ConfigError, DataError
from groupwise.load import Parts, load_parts
from groupwise.rewards.base import weighted
from groupwise.tracking.whole import write_whole
from groupwise.types import Group

LABELS = ("correct", "rewards")


@dataclass(frozen=True)
class PairCount:
    """PairCount(written=310, ties=74, problems=96)"""

    written: int
    ties: int
    problems: int


def write_pairs(
    config: Config,
    out: str,
    *,
    problems: int,
    pairs: int,
    temperatures: tuple[float, float],
    label: str = "correct",
) -> PairCount:
    """Sample, label and write JSON Lines of {"prompt", "chosen", "rejected", ...} to `out`."""
    if label not in LABELS:
        raise ConfigError(f"--label is {label!r}; it must be {' or '.join(LABELS)}")
    low, high = temperatures
    if not 0 < low <= high:
        raise ConfigError(f"temperatures {low:g},{high:g}: give the lower one first, both above 0")
    if not isinstance(config.environment, NoEnvironment):
        raise ConfigError(
            f"environment.kind={config.environment.kind}: the two answers of a pair are one turn "
            "each, so conversations make none. To sample plain answers, add environment=none"
        )
    with load_parts(config) as parts:
        groups = parts.sample_groups(
            parts.problems["train"][:problems],
            config.rollout.sampling,
            group_size=2 * pairs,
            step="pairs",
            temperatures=temperatures,
        )
        scores = _scores(parts, groups, label)
    lines = []
    for group, values in zip(groups, scores, strict=True):
        for cool, warm in zip(range(pairs), range(pairs, 2 * pairs), strict=True):
            if values[cool] != values[warm]:
                chosen, rejected = (cool, warm) if values[cool] > values[warm] else (warm, cool)
                lines.append(_line(group, chosen, rejected, values))
    if not lines:
        raise DataError(
            f"none of {len(groups) * pairs} pairs has a better answer: sample more problems "
            "(--problems), warmer (--temperatures), or label by the recipe's rewards"
        )
    write_whole(pathlib.Path(out), "".join(json.dumps(line) + "\n" for line in lines))
    return PairCount(len(lines), len(groups) * pairs - len(lines), len(groups))


def _scores(parts: Parts, groups: Sequence[Group], label: str) -> list[list[float]]:
    flat = [(group.problem, c.text) for group in groups for c in group.completions]
    problems, texts = [problem for problem, _ in flat], [text for _, text in flat]
    if label == "correct":
        verdicts = parts.judge.score(problems, texts)
        if "correct" not in verdicts:
            raise ConfigError(
                f"the task {parts.task.name} has no verifier: label by rewards (--label rewards)"
            )
        values = verdicts["correct"]
    else:
        rewards = parts.scorer.rewards
        values = weighted(parts.scorer.score(problems, texts), {r.name: r.weight for r in rewards})
    known = iter(value or 0.0 for value in values)
    return [[next(known) for _ in group.completions] for group in groups]


def _line(group: Group, chosen: int, rejected: int, scores: Sequence[float]) -> dict[str, object]:
    return {
        "problem": group.problem.id,
        "prompt": group.problem.prompt,
        "chosen": group.completions[chosen].text,
        "rejected": group.completions[rejected].text,
        "chosen_score": scores[chosen],
        "rejected_score": scores[rejected],
        "chosen_temperature": group.completions[chosen].temperature,
        "rejected_temperature": group.completions[rejected].temperature,
    }
