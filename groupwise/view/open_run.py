"""What the server keeps of one run: positions in its files and small caches, not its bulk."""

import json
import threading
import time
from typing import Any

from groupwise.view.cards import Decoder
from groupwise.view.catalog import Run
from groupwise.view.findings import FindingsLog
from groupwise.view.jsonl_tail import parse_object, position
from groupwise.view.metric_log import MetricLog
from groupwise.view.problem_index import ProblemIndex
from groupwise.view.rollout_files import RolloutFiles
from groupwise.view.settings import family, read_settings
from groupwise.view.stored_group import Unreadable
from groupwise.view.token_text import run_decoder

LONGEST_SUMMARY = 1_000_000


class OpenRun:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.metrics = MetricLog(run.path / "metrics.jsonl")
        self.files = RolloutFiles(run)
        self.problems = ProblemIndex(run, self.files)
        self.findings = FindingsLog(run)
        self._lock = threading.Lock()
        self._settings: tuple[int, dict[str, Any], str | None] | None = None
        self._decoder: Decoder | None = None

    def line(self) -> dict[str, Any]:
        """One line of the list of runs: cheap enough to ask for every other second."""
        settings, problem = self.settings()
        now = position(self.run.path / "metrics.jsonl")
        last_step = now.last_row.get("step", 0)
        summary = self.summary()
        return {
            "id": self.run.id,
            "name": self.run.name,
            "seed": settings.get("seed"),
            "family": family(settings) if settings else self.run.id,
            "planned_steps": settings.get("steps"),
            "last_step": last_step if isinstance(last_step, int) else 0,
            "generation": now.generation,
            "status": str(summary.get("status", "unfinished"))[:40],
            "idle_seconds": self.idle_seconds(),
            "problem": problem,
        }

    def settings(self) -> tuple[dict[str, Any], str | None]:
        """The settings, and what is wrong with their file if anything is."""
        try:
            changed = self.run.file("config.yaml").stat().st_mtime_ns
        except OSError:
            return {}, None
        with self._lock:
            if self._settings is None or self._settings[0] != changed:
                try:
                    self._settings = (changed, read_settings(self.run), None)
                except Unreadable as error:
                    self._settings = (changed, {}, str(error))
            return self._settings[1], self._settings[2]

    def summary(self) -> dict[str, Any]:
        """summary.json of a finished run; empty before."""
        try:
            with self.run.file("summary.json").open("rb") as file:
                return parse_object(file.read(LONGEST_SUMMARY)) or {}
        except OSError:
            return {}

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


def to_json(value: Any) -> bytes:
    """ASCII with escapes, so that a lone surrogate in a model's output survives as one."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
