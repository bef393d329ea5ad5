"""What a run came to: findings that need its end, or that hold though it was short.

Symptoms (watch.py) wait for `START` steps before they say anything. A run of three steps in which
nothing was learned, or one whose test accuracy fell to zero, must not end without a word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from groupwise.config import Config
from groupwise.diagnose.finding import Finding, by_severity
from groupwise.diagnose.history import percent
from groupwise.diagnose.watch import diagnose

Rows = Sequence[Mapping[str, Any]]
Metrics = Mapping[str, float]


def diagnose_outcome(
    rows: Rows, before: Metrics, after: Metrics, config: Config | None = None
) -> list[Finding]:
    """Everything that is wrong at the end of a run, most severe first.

    `before` and `after` are its evaluations on the test problems.
    """
    standing = {finding.code: finding for finding in diagnose(rows, config)}
    step = int(rows[-1].get("step", len(rows))) if rows else 0
    for code, finding in {
        "accuracy_lost": _accuracy_lost(before, after),
        "nothing_learned": _nothing_learned(rows, after),
        "eos_never": _all_cut_off(after, config),
    }.items():
        if finding is not None and code not in standing:
            standing[code] = replace(finding, code=code, step=step)
    if "nothing_learned" in standing:
        standing.pop("no_spread", None)  # the same, said less clearly
    return by_severity(standing.values())


def _accuracy_lost(before: Metrics, after: Metrics) -> Finding | None:
    """Fewer test problems are solved than before, by more than chance explains."""
    if "accuracy" not in before or "accuracy" not in after:
        return None
    was, now = before["accuracy"], after["accuracy"]
    problems = max(after.get("problems", 1.0), 1.0)
    mean = (was + now) / 2
    chance = 2 * (2 * max(mean * (1 - mean), 0.01) / problems) ** 0.5
    if was - now <= chance:
        return None
    return Finding(
        f"Test accuracy fell from {percent(was)} to {percent(now)}",
        f"greedy answers to {problems:.0f} test problems; chance alone moves it by less than "
        f"{100 * chance:.0f} points",
        "look at answers (groupwise view RUN, or groupwise compare RUN); a lower optimizer.lr; "
        "algorithm.kl_weight=0.02 holds the policy near its start; best/ has the best model of "
        "the run if eval.every was set; try to game the rewards: groupwise reward bench",
        "error",
    )


def _nothing_learned(rows: Rows, after: Metrics) -> Finding | None:
    """No step of the run had a gradient: the model is what it was."""
    if not rows or any(row.get("updates", 1) and row.get("grad_norm", 1) for row in rows):
        return None
    reward = sum(float(row.get("reward") or 0) for row in rows) / len(rows)
    count = "The only step" if len(rows) == 1 else f"All {len(rows)} steps"
    solved = min((float(row.get("accuracy", 0)) for row in rows), default=0.0) >= 0.9
    advice = (
        "the problems are too easy: use harder ones (task.*)"
        if solved
        else "problems that the model solves sometimes, or a reward that gives part marks; "
        "rollout.temperature=1.0 and a larger batch.group_size make answers differ; `groupwise "
        "check` tries a recipe on a few problems first"
    )
    return Finding(
        "Nothing was learned: the model is what it was",
        f"{count} had answers that all scored the same within their group (mean reward "
        f"{reward:.3f}), so there was no gradient",
        advice,
        "error",
    )


def _all_cut_off(after: Metrics, config: Config | None) -> Finding | None:
    if after.get("truncated", 0.0) < 1.0:
        return None
    limit = "" if config is None else f" of {config.rollout.max_completion_tokens} tokens"
    return Finding(
        "No answer to a test problem ends: all are cut off",
        f"all {after.get('problems', 0):.0f} greedy answers after training ran to the limit{limit}",
        "look at answers (groupwise sample RUN): if they go on after the answer, set rollout.stop "
        "to a string that ends one; if they are cut off in mid-thought, raise "
        "rollout.max_completion_tokens",
        "error",
    )
