"""How rewards, lengths, advantages and pass rates are spread at each step, over training.

Steps are read in slices of time, from the coarse to the fine: the first and the last, then those
half-way between, so that a long run shows its shape at once.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

from groupwise.view.rollout_files import RolloutFiles
from groupwise.view.stored_group import StoredGroup, Unreadable

SLICE_SECONDS = 0.5
MOST_STEPS = 64
BINS = 24

Values = dict[str, list[float]]


class Distributions:
    def __init__(self, files: RolloutFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._values: dict[int, Values] = {}

    def extend(self, seconds: float = SLICE_SECONDS) -> dict[str, Any]:
        """Histograms of the steps read so far: `read` of `wanted`."""
        with self._lock:
            stored = self._files.steps()
            self._values = {s: v for s, v in self._values.items() if s in set(stored)}
            wanted = spread_out(stored, MOST_STEPS)
            until = time.monotonic() + seconds
            for step in wanted:
                if step not in self._values and time.monotonic() < until:
                    self._values[step] = self._read(step)
            ready = sorted(step for step in wanted if step in self._values)
            names = dict.fromkeys(name for step in ready for name in self._values[step])
            histograms = {
                name: histogram([self._values[step].get(name, []) for step in ready])
                for name in names
            }
            return {
                "steps": ready, "read": len(ready), "wanted": len(wanted), "histograms": histograms,
            }  # fmt: skip

    def _read(self, step: int) -> Values:
        try:
            return _values(list(self._files.groups(step)))
        except Unreadable:
            return {}


def spread_out(steps: Sequence[int], most: int) -> list[int]:
    """At most so many of the steps, evenly spread; the ends first, then between those before."""
    if not steps:
        return []
    count = min(most, len(steps))
    even = [steps[round(i * (len(steps) - 1) / max(count - 1, 1))] for i in range(count)]
    order: list[int] = [0, count - 1]
    width = count - 1
    while width > 1:
        width //= 2
        order += range(0, count, width)
    return [even[place] for place in dict.fromkeys(order)]


def histogram(columns: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Counts in the same bins for every column; low and high are the ends of the bins."""
    values = [value for column in columns for value in column]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    width = (high - low) / BINS or 1.0
    counts = []
    for column in columns:
        bins = [0] * BINS
        for value in column:
            bins[min(max(int((value - low) / width), 0), BINS - 1)] += 1
        counts.append(bins)
    return {"low": low, "high": high, "counts": counts}


def _values(groups: Sequence[StoredGroup]) -> Values:
    answers = [answer for group in groups for answer in group.whole_answers]
    verdicts = [[a.right for a in g.whole_answers if a.right is not None] for g in groups]
    values: Values = {
        "reward": [a.reward for a in answers if a.reward is not None],
        "pass rate": [sum(right) / len(right) for right in verdicts if right],
        "advantage": [a.advantage for a in answers if a.advantage is not None],
        "tokens": [float(a.length) for a in answers],
    }
    # What is beyond any sensible scale would leave all else in one bin.
    return {name: [v for v in column if abs(v) < 1e12] for name, column in values.items() if column}
