"""Where each problem was seen and how its answers scored, so that one can be followed.

A run writes this beside its rollouts (rollouts/index.jsonl). Steps that it does not cover, those of
an older run, are read from the stored answers instead, in slices of time.
"""

import math
import threading
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from groupwise.view.catalog import Run
from groupwise.view.jsonl_tail import JsonLinesTail
from groupwise.view.rollout_files import RolloutFiles
from groupwise.view.stored_group import Unreadable
from groupwise.view.untrusted import finite

SLICE_SECONDS = 1.0
FIELDS = 5
STRIP = 40


class Appearance(NamedTuple):
    """One appearance of a problem: its step, its place there, and its answers' rewards."""

    step: int
    group: int
    low: float | None
    mean: float | None
    high: float | None


@dataclass(frozen=True)
class Coverage:
    covered: int
    steps: int


class ProblemIndex:
    def __init__(self, run: Run, files: RolloutFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._tail = JsonLinesTail(run.path / "rollouts" / "index.jsonl")
        self._inside = lambda: run.file("rollouts", "index.jsonl")
        self._clear()

    def _clear(self) -> None:
        self._covered: set[int] = set()
        # Flat arrays, not objects: a long run has hundreds of thousands of appearances.
        self._seen: dict[str, array] = {}
        self.version = getattr(self, "version", 0) + 1

    def extend(self, seconds: float = SLICE_SECONDS) -> Coverage:
        """Take in what is new; a run without an index takes several calls."""
        with self._lock:
            self._read_index()
            steps = self._files.steps()
            until = time.monotonic() + seconds
            for step in steps:
                if step in self._covered:
                    continue
                if time.monotonic() > until:
                    break
                self._read_step(step)
            return Coverage(sum(step in self._covered for step in steps), len(steps))

    def history(self, problem: str) -> list[Appearance]:
        """Every appearance of a problem, by step."""
        with self._lock:
            flat = self._seen.get(problem, array("d"))
            return sorted(_appearance(flat, place) for place in range(len(flat) // FIELDS))

    def strip(self, problem: str) -> list[float | None]:
        """The mean rewards of a problem at some appearances, evenly spread over training."""
        with self._lock:
            flat = self._seen.get(problem, array("d"))
            steps, means = flat[::FIELDS], flat[3::FIELDS]
        order = sorted(range(len(steps)), key=lambda place: steps[place])
        count = min(len(order), STRIP)
        places = (round(i * (len(order) - 1) / max(count - 1, 1)) for i in range(count))
        return [finite(means[order[place]]) for place in places]

    def best_before(self, problem: str, step: int) -> float | None:
        """The best reward that the problem had earned before a step; None if it was not seen."""
        highs = [s.high for s in self.history(problem) if s.step < step and s.high is not None]
        return max(highs, default=None)

    def table(self) -> list[dict[str, Any]]:
        """Each problem with its first and last appearance, those that changed most first.

        Of those that changed alike, the one with the lowest reward comes first.
        """
        with self._lock:
            rows = [_row(problem, flat) for problem, flat in self._seen.items()]
        return sorted(rows, key=_order)

    def _read_index(self) -> None:
        try:
            self._inside()
        except FileNotFoundError:
            return
        new = self._tail.read()
        if new.restarted:
            self._clear()
        for row in new.rows:
            step, groups = row.get("step"), row.get("groups")
            if not isinstance(step, int) or not isinstance(groups, list) or step in self._covered:
                continue
            for place, group in enumerate(groups):
                if isinstance(group, list) and len(group) == 4 and isinstance(group[0], str):
                    self._add(group[0], step, place, group[1:])
            self._covered.add(step)
            self.version += 1

    def _read_step(self, step: int) -> None:
        self._covered.add(step)
        self.version += 1
        try:
            for group in self._files.groups(step):
                rewards = group.rewards
                numbers = (
                    (min(rewards), sum(rewards) / len(rewards), max(rewards)) if rewards else ()
                )
                self._add(group.problem, step, group.index, numbers)
        except Unreadable:
            return

    def _add(self, problem: str, step: int, place: int, numbers: Iterable[Any]) -> None:
        try:
            entry = array("d", (step, place, *numbers))
        except (TypeError, OverflowError):
            entry = array("d")
        if len(entry) != FIELDS:
            entry = array("d", (step, place, math.nan, math.nan, math.nan))
        self._seen.setdefault(problem, array("d")).extend(entry)


def _appearance(flat: array, place: int) -> Appearance:
    step, group, *numbers = flat[place * FIELDS : (place + 1) * FIELDS]
    return Appearance(int(step), int(group), *map(finite, numbers))


def _order(row: dict[str, Any]) -> tuple[float, float, str]:
    return (-abs(row["change"]), row["last"]["mean"] or 0.0, row["problem"])


def _row(problem: str, flat: array) -> dict[str, Any]:
    steps = flat[::FIELDS]
    first, last = (_appearance(flat, steps.index(end(steps))) for end in (min, max))
    return {
        "problem": problem,
        "seen": len(steps),
        "first": first._asdict(),
        "last": last._asdict(),
        "change": (last.mean or 0.0) - (first.mean or 0.0),
    }
