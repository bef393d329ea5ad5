"""What a reward model is fitted on and measured by: answers with scores, and pairs of answers.

They come from JSON Lines, {"prompt", "completion", "score"} or {"prompt", "chosen", "rejected"}, or
from the stored rollouts of a run, which the run's own task labels right or wrong. `prompt` is text
or messages; `problem` may name the problem where prompts do not.

A problem is held out as a whole, by a hash: no problem is ever in both halves, and it stays where
it is when the data grows.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.config import Config
from groupwise.errors import ConfigError, DataError
from groupwise.recipe import read_config
from groupwise.rewards.base import Reward
from groupwise.rewards.scorer import Scorer
from groupwise.tasks.catalog import build_task
from groupwise.tasks.jsonl import Row, read_rows
from groupwise.tracking.run import stored_groups, stored_steps
from groupwise.types import Group, Prompt

LABEL_TIMEOUT = 30.0
PAIRS_PER_PROBLEM = 12
"""Of a problem's answers at most so many pairs are made: a few problems must not be all of it."""


@dataclass(frozen=True)
class Scored:
    """Scored("3+4=", "7", score=1.0, problem="3+4")"""

    prompt: Prompt
    completion: str
    score: float
    problem: str


@dataclass(frozen=True)
class Pair:
    """Pair("3+4=", "7", "8", target=1.0, problem="3+4"): how sure it is that `first` is better."""

    prompt: Prompt
    first: str
    second: str
    target: float
    problem: str


@dataclass(frozen=True)
class Examples:
    """Answers with scores, or pairs: one of the two is empty."""

    scored: tuple[Scored, ...] = ()
    pairs: tuple[Pair, ...] = ()

    def __len__(self) -> int:
        return len(self.scored) + len(self.pairs)

    @property
    def problems(self) -> set[str]:
        return {item.problem for item in (*self.scored, *self.pairs)}


def read_examples(source: str, *, trust_code: bool = False) -> Examples:
    """A run folder, or a file of JSON Lines. `trust_code`: for a run whose task is a function."""
    path = Path(os.path.expanduser(source))
    if (path / "config.yaml").is_file():
        return labelled_rollouts(path, trust_code=trust_code)
    if not path.is_file():
        raise DataError(
            f"{source} is neither a run folder nor a file; give the folder of a run, or JSON Lines "
            'with {"prompt", "completion", "score"} or {"prompt", "chosen", "rejected"}'
        )
    rows = read_rows(path)
    if all("chosen" in row.columns for row in rows):
        pairs = tuple(_pair(row) for row in rows)
        return Examples(pairs=pairs)
    return Examples(scored=tuple(_scored(row) for row in rows))


def read_answers(source: str) -> list[tuple[dict[str, Any], Prompt, str]]:
    """The rows of {"prompt", "completion"} to score, each with all of its columns."""
    path = Path(os.path.expanduser(source))
    if not path.is_file():
        raise DataError(f'there is no file {source}; give JSON Lines with "prompt", "completion"')
    return [(dict(row.columns), _prompt(row), _text(row, "completion")) for row in read_rows(path)]


def labelled_rollouts(run: Path, *, trust_code: bool = False) -> Examples:
    """Every different answer that a run stored, 1 if its task's verifier finds it right, else 0."""
    config = read_config(run / "config.yaml", trust_code=trust_code)
    groups = [group for step in stored_steps(run) for group in stored_groups(run, step)]
    if not any(group.completions for group in groups):
        raise DataError(
            f"{run} has no rollouts to learn from: train it with tracking.rollouts=1, or give "
            "JSON Lines of scored answers"
        )
    return label(groups, config, str(run))


def label(groups: Sequence[Group], config: Config, where: str) -> Examples:
    """The groups' answers, judged by the task of `config`. Equal answers count once."""
    task = build_task(config.task)
    if task.correct is None:
        raise DataError(
            f"the task of {where} ({task.name}) has no verifier that tells right answers; fit on "
            'JSON Lines of {"prompt", "completion", "score"} instead'
        )
    answers = {
        (group.problem.id, c.text): (group.problem, c.text)
        for group in groups
        for c in group.completions
    }
    problems, texts = zip(*answers.values(), strict=True)
    with Scorer([Reward("correct", task.correct)], LABEL_TIMEOUT, "stop") as scorer:
        verdicts = scorer.score(problems, texts)["correct"]
    return Examples(
        scored=tuple(
            Scored(problem.prompt, text, float(verdict or 0.0), problem.id)
            for problem, text, verdict in zip(problems, texts, verdicts, strict=True)
        )
    )


def pairs_of(scored: Sequence[Scored]) -> tuple[Pair, ...]:
    """Pairs of answers to the same problem: the better first, or a tie of 0.5 where none is.

    Half of a problem's pairs at most are ties: they teach what no preference looks like. Which
    pairs are taken is drawn by a hash of their texts.
    """
    by_problem: dict[str, list[Scored]] = {}
    for item in scored:
        by_problem.setdefault(item.problem, []).append(item)
    chosen: list[Pair] = []
    for items in by_problem.values():
        unequal, ties = [], []
        for a, b in itertools.combinations(items, 2):
            better, worse = (a, b) if a.score >= b.score else (b, a)
            target = 1.0 if better.score > worse.score else 0.5
            pair = Pair(a.prompt, better.completion, worse.completion, target, a.problem)
            (unequal if target == 1.0 else ties).append(pair)
        for pairs, most in ((unequal, PAIRS_PER_PROBLEM), (ties, min(len(unequal), 4))):
            chosen += sorted(pairs, key=lambda p: _hash(p.first, p.second))[:most]
    return tuple(chosen)


def hold_out(examples: Examples, share: float) -> tuple[Examples, Examples]:
    """(train, validation): about `share` of the problems, whole, go to the second; at least one."""
    if not 0 < share < 1:
        raise ConfigError(f"--validation is {share:g}; it must be a share between 0 and 1")
    ordered = sorted(examples.problems, key=lambda name: _hash("held out", name))
    if len(ordered) < 2:
        raise DataError("all data is about one problem, so none can be held out: add others")
    count = sum(_hash("held out", name) < share * 2**32 for name in ordered)
    held = set(ordered[: min(max(count, 1), len(ordered) - 1)])

    def part(inside: bool) -> Examples:
        return Examples(
            tuple(item for item in examples.scored if (item.problem in held) == inside),
            tuple(item for item in examples.pairs if (item.problem in held) == inside),
        )

    return part(False), part(True)


def _hash(*texts: str) -> int:
    joined = "\x1f".join(texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(joined, digest_size=4).digest(), "little")


def _scored(row: Row) -> Scored:
    score = row.columns.get("score")
    if not isinstance(score, int | float) or score != score or abs(score) == float("inf"):
        raise DataError(
            f"{row.location}: score must be a finite number, or true or false, not {score!r}. "
            'A line is {"prompt", "completion", "score"} or {"prompt", "chosen", "rejected"}'
        )
    prompt = _prompt(row)
    return Scored(prompt, _text(row, "completion"), float(score), _problem(row, prompt))


def _pair(row: Row) -> Pair:
    prompt = _prompt(row)
    return Pair(prompt, _text(row, "chosen"), _text(row, "rejected"), 1.0, _problem(row, prompt))


def _problem(row: Row, prompt: Prompt) -> str:
    return str(row.columns.get("problem") or json.dumps(prompt))


def _text(row: Row, name: str) -> str:
    value = row.columns.get(name)
    # TRL's preference data has the answer as a conversation of one turn.
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    if not isinstance(value, str):
        raise DataError(f"{row.location}: {name} must be text, not {value!r:.80}")
    return value


def _prompt(row: Row) -> Prompt:
    prompt = row.columns.get("prompt")
    if isinstance(prompt, str):
        return prompt
    turns = prompt if isinstance(prompt, list) and prompt else [None]
    if not all(isinstance(t, dict) and {"role", "content"} <= t.keys() for t in turns):
        raise DataError(
            f"{row.location}: prompt must be text or a list of messages, not {prompt!r:.80}"
        )
    return tuple({"role": str(t["role"]), "content": str(t["content"])} for t in turns if t)
