"""What the server keeps of one run: positions in its files and small caches, not its bulk."""

import json
import math
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from groupwise.view.cards import Decoder
from groupwise.view.catalog import Run
from groupwise.view.distributions import Distributions
from groupwise.view.findings import FindingsLog
from groupwise.view.held_out import HeldOut
from groupwise.view.jsonl_tail import position
from groupwise.view.metric_log import MetricLog
from groupwise.view.problem_index import ProblemIndex
from groupwise.view.rollout_files import RolloutFiles
from groupwise.view.settings import family, read_settings
from groupwise.view.stored_group import Unreadable
from groupwise.view.token_text import run_decoder
from groupwise.view.untrusted import finite, read_summary, whole


class OpenRun:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.metrics = MetricLog(run.path / "metrics.jsonl")
        self.files = RolloutFiles(run)
        self.problems = ProblemIndex(run, self.files)
        self.findings = FindingsLog(run)
        self.held_out = HeldOut(run)
        self.distributions = Distributions(self.files)
        self._lock = threading.Lock()
        self._settings: tuple[int, dict[str, Any], str | None] | None = None
        self._decoder: Decoder | None = None

    def line(self) -> dict[str, Any]:
        """One line of the list of runs: cheap enough to ask for every other second.

        Whatever is wrong with one run folder is told on its own line, and hides no other run.
        """
        line = dict.fromkeys(
            ("seed", "planned_steps", "model", "task", "idle_seconds", "problem", "test")
        )
        line |= {"id": self.run.id, "name": self.run.name, "family": self.run.id, "last_step": 0}
        line |= {"generation": "", "status": "unfinished", "latest": {}}
        try:
            line |= self._described()
        except Exception as error:
            line["problem"] = f"the run folder cannot be read: {type(error).__name__}"
        return line

    def _described(self) -> dict[str, Any]:
        settings, problem = self.settings()
        path = self.run.path / "metrics.jsonl"
        now, summary = position(path), read_summary(self.run)
        tested = self.held_out.metrics(summary).items()
        if problem is None and os.path.lexists(path) and not now.generation:
            problem = "metrics.jsonl is not a file that can be read"
        return {
            "seed": whole(settings.get("seed")),
            "family": family(settings) if settings else self.run.id,
            "planned_steps": whole(settings.get("steps")),
            "model": str(settings.get("model", ""))[:120],
            "task": str(settings.get("task.kind", ""))[:120],
            "samples_per_step": _product(settings, "batch.prompts", "batch.group_size"),
            "last_step": whole(now.last_row.get("step")) or 0,
            "generation": now.generation,
            "status": str(summary.get("status", "unfinished"))[:40],
            "idle_seconds": self.idle_seconds(),
            "problem": problem,
            "latest": {name: finite(now.last_row.get(name)) for name in ("reward", "seconds")},
            "test": {
                name: {moment: metrics[name] for moment, metrics in tested if name in metrics}
                for name in ("accuracy", "reward")
            },
        }

    def settings(self) -> tuple[dict[str, Any], str | None]:
        """The settings, and what is wrong with their file if anything is."""
        try:
            changed = (self.run.path / "config.yaml").lstat().st_mtime_ns
        except OSError:
            return {}, None
        with self._lock:
            if self._settings is None or self._settings[0] != changed:
                try:
                    self._settings = (changed, read_settings(self.run), None)
                except Unreadable as error:
                    self._settings = (changed, {}, str(error))
            return self._settings[1], self._settings[2]

    def has(self, *parts: str) -> bool:
        """Whether the run folder holds this file."""
        try:
            return self.run.file(*parts).is_file()
        except OSError:
            return False

    def decoder(self) -> Decoder | None:
        """Looked for again until it is there: a run has no model folder at first."""
        settings, _ = self.settings()
        with self._lock:
            if self._decoder is None:
                self._decoder = run_decoder(self.run, str(settings.get("model", "")))
            return self._decoder

    def idle_seconds(self) -> float | None:
        try:
            changed = self.run.file("metrics.jsonl").stat().st_mtime
        except OSError:
            return None
        return max(time.time() - changed, 0.0)


def _product(settings: Mapping[str, Any], *names: str) -> int | None:
    numbers = [whole(settings.get(name)) for name in names]
    known = [number for number in numbers if number is not None]
    return whole(math.prod(known)) if len(known) == len(numbers) else None


def to_json(value: Any) -> bytes:
    """ASCII with escapes, so that a lone surrogate in a model's output survives as one."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
