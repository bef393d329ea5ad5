"""metrics.jsonl as columns that grow with the file, served a window at a time.

A window is cut into buckets of `width` steps, the same for every run, so that runs can be laid over
each other and averaged. A bucket has the mean of its steps and, where it holds several, the lowest
and the highest, so that a spike is never averaged away.
"""

import math
import pathlib
import threading
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

from groupwise.view.jsonl_tail import JsonLinesTail
from groupwise.view.untrusted import finite

MOST_POINTS = 4000
MOST_KEYS = 500
LONGEST_NAME = 200
ELAPSED = ("elapsed/seconds", "elapsed/tokens")


@dataclass
class MetricSeries:
    """One metric: the steps at which it was logged, ascending, and its values there."""

    steps: array = field(default_factory=lambda: array("q"))
    values: array = field(default_factory=lambda: array("d"))


class MetricLog:
    def __init__(self, path: pathlib.Path) -> None:
        self._tail = JsonLinesTail(path)
        self._lock = threading.Lock()
        self._columns: dict[str, MetricSeries] = {}
        self._totals = dict.fromkeys(ELAPSED, 0.0)
        self.last_step = 0

    def window(self, start: int, stop: int | None, width: int) -> dict[str, Any]:
        """Steps start..stop of every metric, in buckets of `width` steps (more, if too many)."""
        with self._lock:
            self._refresh()
            stop = self.last_step if stop is None else min(stop, self.last_step)
            width = max(width, math.ceil((stop - start + 1) / MOST_POINTS), 1)
            grids: dict[tuple[int, ...], int] = {}
            series: dict[str, Any] = {}
            for name, column in self._columns.items():
                steps, *numbers = _buckets(column, start, stop, width)
                grid = grids.setdefault(tuple(steps), len(grids))
                parts = ("mean", "low", "high")[: len(numbers)]
                series[name] = {"grid": grid, **dict(zip(parts, numbers, strict=True))}
            return {
                "generation": self._tail.generation,
                "last_step": self.last_step,
                "broken_lines": self._tail.broken,
                "width": width,
                "grids": [list(grid) for grid in grids],
                "series": series,
                "latest": {n: finite(c.values[-1]) for n, c in self._columns.items()},
            }

    def refresh(self) -> None:
        """Take in what was logged since."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        new = self._tail.read()
        if new.restarted:
            self._columns, self.last_step = {}, 0
            self._totals = dict.fromkeys(ELAPSED, 0.0)
        rows = [row for row in new.rows if self._is_next(row)]
        steps = [row["step"] for row in rows]
        for name in dict.fromkeys(chain.from_iterable(rows)):
            if name in ELAPSED:
                continue
            try:  # the usual case: every row has it, and it is a number
                self._append(name, steps, array("d", [row[name] for row in rows]))
            except (KeyError, TypeError, OverflowError):
                own = [row for row in rows if type(row.get(name)) in (float, int)]
                values = array("d", [_as_float(row[name]) for row in own])
                self._append(name, [row["step"] for row in own], values)
        self._add_elapsed(rows, steps)

    def _add_elapsed(self, rows: list[dict[str, Any]], steps: list[int]) -> None:
        """What the run had taken up to each step: other axes that a curve can be drawn over."""
        spent = [finite(row.get("seconds")) or 0.0 for row in rows]
        speeds = [finite(row.get("tokens_per_second")) or 0.0 for row in rows]
        tokens = [seconds * speed for seconds, speed in zip(spent, speeds, strict=True)]
        for name, added in zip(ELAPSED, (spent, tokens), strict=True):
            if name in self._columns or any(added):
                totals = list(accumulate(added, initial=self._totals[name]))
                self._append(name, steps, array("d", totals[1:]))
                self._totals[name] = totals[-1]

    def _is_next(self, row: dict[str, Any]) -> bool:
        """Whether the row is a later step than all before; others are left out, and counted."""
        step = row.get("step")
        if type(step) is int and self.last_step < step < 2**53:
            self.last_step = step
            return True
        self._tail.broken += 1
        return False

    def _append(self, name: str, steps: list[int], values: array) -> None:
        column = self._columns.get(name)
        if column is None:
            full = len(self._columns) == MOST_KEYS
            if full or not steps or name == "step" or len(name) > LONGEST_NAME:
                return
            column = self._columns[name] = MetricSeries()
        column.steps.extend(steps)
        column.values.extend(values)


def _buckets(column: MetricSeries, start: int, stop: int, width: int) -> list[list[Any]]:
    """[steps, values] for single steps; [steps, means, lows, highs] for wider buckets."""
    first, last = bisect_left(column.steps, start), bisect_right(column.steps, stop)
    if width == 1:
        return [column.steps[first:last].tolist(), [finite(v) for v in column.values[first:last]]]
    steps, means, lows, highs = [], [], [], []
    while first < last:
        end = -(-column.steps[first] // width) * width
        following = bisect_right(column.steps, end, first, min(first + width, last))
        values = column.values[first:following]
        total = sum(values)
        if not math.isfinite(total):
            values = [value for value in values if math.isfinite(value)]
            total = sum(values)
        steps.append(end)
        means.append(_short(total / len(values)) if values else None)
        lows.append(_short(min(values)) if values else None)
        highs.append(_short(max(values)) if values else None)
        first = following
    return [steps, means, lows, highs]


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond any float
        return math.nan


def _short(value: float) -> float | None:
    return finite(float(f"{value:.6g}"))
