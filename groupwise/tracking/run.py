"""A run folder: the whole truth about a run, and the only thing that viewers read.

config.yaml  metrics.jsonl  findings.jsonl  rollouts/step-000001.jsonl.gz  rollouts/index.jsonl
eval/before.jsonl  eval/after.jsonl  eval/before_after.md
checkpoints/  best/  model/  events/  reward.png  report.html  summary.json
"""

import fcntl
import gzip
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.config import Config
from groupwise.config.flat import leaves, within
from groupwise.errors import RunFolderError
from groupwise.recipe import parse, read_yaml, write_config
from groupwise.secrets import without_secrets
from groupwise.types import Group, to_json

# What may change between two starts of the same run without changing what was computed so far.
FREE = (
    "checkpoint",
    "tracking",
    "distributed",
    "ray",
    "batch.tokens_per_microbatch",
    *(f"engine.{name}" for name in ("max_batch", "urls", "token_env", "timeout")),
    *(f"engine.{name}" for name in ("memory_share", "sleep", "eager")),
    *(f"reference.{name}" for name in ("urls", "token_env", "timeout")),
    *(f"workers.{name}" for name in ("count", "urls", "token_env", "timeout")),
)
# What a run that failed at the start may have left.
OWN = (".lock", "config.yaml", "metrics.jsonl", "findings.jsonl", "events", "eval")
# Which problems each stored step holds, with the lowest, mean and highest reward of their answers.
INDEX = "rollouts/index.jsonl"


class RunFolder:
    """Owns a folder for one process at a time: `with RunFolder(path, config) as run:`"""

    def __init__(self, path: pathlib.Path, config: Config) -> None:
        self.path = path
        self.config = config
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(f"{path} is in use by another run; give --out another") from None
        except OSError as error:
            raise RunFolderError(f"cannot use {path} as a run folder: {error.strerror}") from error
        self._claim()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @property
    def checkpoints(self) -> pathlib.Path:
        return self.path / "checkpoints"

    @property
    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run; None while there is training left to do."""
        return read_summary(self.path)

    def _claim(self) -> None:
        """Take an empty folder, or one that the same config made; refuse any other.

        A run that failed before its first step has nothing to lose: its folder is free again.
        """
        owned = self.path / "config.yaml"
        if owned.exists() and (self.checkpoints.exists() or read_metrics(self.path)):
            changed = differences(parse(read_yaml(owned)), self.config)
            if changed:
                raise RunFolderError(
                    f"{self.path} belongs to a run with other settings: {'; '.join(changed)}. "
                    "Use the same settings to resume it, or give another --out"
                )
        elif foreign := [p.name for p in self.path.iterdir() if p.name not in OWN]:
            raise RunFolderError(
                f"{self.path} is not empty and is not a run folder (it holds {foreign[0]}); "
                "give --out an empty or new folder"
            )
        write_config(self.config, owned)

    def rewind(self, step: int) -> None:
        """Drop what was logged after `step`, where the run goes on from."""
        logs = ["metrics.jsonl", "findings.jsonl"]
        if (self.path / INDEX).exists():
            logs.append(INDEX)
        for name in logs:
            kept = [line for line in read_lines(self.path / name) if line["step"] <= step]
            aside = self.path / f"{name}.new"
            aside.write_text("".join(json.dumps(line) + "\n" for line in kept))
            os.replace(aside, self.path / name)
        for path in (self.path / "rollouts").glob("step-*.jsonl.gz"):
            if int(path.name[5:11]) > step:
                path.unlink()

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(metrics) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def log_rollouts(self, step: int, groups: Sequence[Group]) -> None:
        """Every answer with its scores and advantage, one group a line."""
        folder = self.path / "rollouts"
        folder.mkdir(exist_ok=True)
        path = folder / f"step-{step:06d}.jsonl.gz"
        lines = "".join(json.dumps(to_json(group), default=str) + "\n" for group in groups)
        aside = path.with_suffix(".new")
        aside.write_bytes(gzip.compress(lines.encode(), compresslevel=6, mtime=0))
        os.replace(aside, path)
        with (self.path / INDEX).open("a") as file:
            file.write(json.dumps(_index_line(step, groups)) + "\n")

    def log_evaluation(self, moment: str, problems: Sequence[Mapping[str, Any]]) -> None:
        """What each held-out problem came to, `before` or `after` training, one a line."""
        folder = self.path / "eval"
        folder.mkdir(exist_ok=True)
        aside = folder / f"{moment}.jsonl.new"
        lines = (json.dumps(line, ensure_ascii=True) + "\n" for line in problems)
        aside.write_text("".join(lines), encoding="utf-8")
        os.replace(aside, folder / f"{moment}.jsonl")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        aside = self.path / "summary.json.new"
        aside.write_text(json.dumps(summary, indent=2) + "\n")
        os.replace(aside, self.path / "summary.json")


def _index_line(step: int, groups: Sequence[Group]) -> dict[str, Any]:
    rows: list[list[Any]] = []
    for group in groups:
        known = [reward for reward in group.rewards if reward is not None]
        numbers = [min(known), sum(known) / len(known), max(known)] if known else [None] * 3
        rows.append([group.problem.id, *numbers])
    return {"step": step, "groups": rows}


def read_summary(folder: pathlib.Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        return None


def read_metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The steps logged so far."""
    return read_lines(folder / "metrics.jsonl")


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """A file of JSON Lines, none if it is not there; a last line torn by a crash is left out."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    steps = []
    for line in lines:
        try:
            steps.append(json.loads(line))
        except ValueError:
            break
    return steps


def read_rollouts(path: pathlib.Path) -> list[dict[str, Any]]:
    """The groups of one stored step, as plain dicts (`group_from_json` makes them groups)."""
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def differences(old: Config, new: Config) -> list[str]:
    """Settings in which two runs differ and that would change what was already computed."""
    before, after = _effective(old), _effective(new)
    free = FREE + (("steps",) if new.optimizer.schedule == "constant" else ())
    return [
        f"{name} was {before.get(name)!r} and is now {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name) and not within(name, free)
    ]


def _effective(config: Config) -> dict[str, Any]:
    """The settings as they count: without workers nothing is stale, whatever they say."""
    found = leaves(without_secrets(config.model_dump(mode="json")))
    if not config.workers.apart:
        found |= {"workers.max_staleness": 0, "workers.publish_every": 1}
    return found
