"""The metrics of a run as columns, with the few statistics that symptoms are made of.

Rows come one at a time, and a value is looked up in constant time, so that a run of ten thousand
steps is diagnosed in two seconds. Of each column only what is asked for is kept: a run may be long.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

WINDOW = 10
"""Steps that "now" is a mean over."""
START = 5
"""Steps that "at the start" is a mean over, and the fewest that anything is said about."""
KEPT = 64
"""Newest values of a column that are kept: more than any symptom looks back."""
EVALUATIONS = 5
"""Newest evaluations that the training around them is known for."""


@dataclass
class MetricColumn:
    """The values of one metric: the first and the newest, and what is known of all of them."""

    low: float
    high: float
    count: int = 0
    first: list[float] = field(default_factory=list)
    values: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))
    best: float = -math.inf
    """The highest mean of `START` values one after another, counted from the first."""
    _sum: float = 0.0

    def add(self, value: float, step: int) -> None:
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.values.append(value)
        self.steps.append(step)
        if self.count < START:
            self.first.append(value)
        self.count, self._sum = self.count + 1, self._sum + value
        if self.count % START == 0:
            self.best, self._sum = max(self.best, self._sum / START), 0.0

    def last(self, count: int) -> list[float]:
        return list(self.values)[-count:]


class History:
    """History().add(row); values that are no finite numbers are counted in `broken` and left out.

    "Now" is the mean of the last `WINDOW` values of a column, "at the start" that of the first
    `START`; None where there are too few.
    """

    def __init__(self) -> None:
        self.columns: dict[str, MetricColumn] = {}
        self.broken: dict[str, int] = {}
        """Column -> the last step at which it was not finite."""
        self.step = 0
        self.rows = 0
        self._around: dict[int, dict[str, float]] = {}
        """Step of an evaluation -> the means of the last `START` values of each column there."""

    def add(self, row: Mapping[str, Any]) -> None:
        self.step = int(row.get("step", self.step + 1))
        self.rows += 1
        for name, value in row.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not math.isfinite(value):
                self.broken[name] = self.step
                continue
            column = self.columns.setdefault(name, MetricColumn(value, value))
            column.add(float(value), self.step)
        if self.evaluations()[-1:] == [self.step]:
            self._around[self.step] = {n: _mean(c.last(START)) for n, c in self.columns.items()}
            for step in list(self._around)[:-EVALUATIONS]:
                del self._around[step]

    def evaluations(self) -> list[int]:
        """The steps of the newest evaluations."""
        column = self.columns.get("eval/accuracy")
        return [] if column is None else list(column.steps)[-EVALUATIONS:]

    def now(self, name: str, window: int = WINDOW) -> float | None:
        values = self._last(name, window)
        return _mean(values) if len(values) >= min(window, START) else None

    def start(self, name: str) -> float | None:
        """The first steps, once there are as many after them."""
        column = self.columns.get(name)
        return _mean(column.first) if column is not None and column.count >= 2 * START else None

    def earlier(self, name: str) -> float | None:
        """The median of the values before the newest `START`, of at most two windows."""
        values = sorted(self._last(name, 2 * WINDOW + START)[:-START])
        return values[len(values) // 2] if len(values) >= WINDOW else None

    def noise(self, name: str) -> float:
        """The standard error of `now`, from how much single steps differ."""
        values = self._last(name, WINDOW)
        return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0

    def always(self, name: str, value: float) -> bool:
        """Whether the column has been `value` at every one of at least `START` steps."""
        column = self.columns.get(name)
        return column is not None and column.count >= START and column.low == column.high == value

    def total(self, name: str, rows: int) -> float:
        """The sum over the last `rows` steps; a step without the column counts as 0."""
        column, total = self.columns.get(name), 0.0
        if column is None:
            return total
        for value, step in zip(reversed(column.values), reversed(column.steps), strict=True):
            if step <= self.step - rows:
                break
            total += value
        return total

    def around(self, name: str, evaluation: int) -> float | None:
        """At the step of one of the newest evaluations: its own value, or of training the mean of
        the last `START` values."""
        if not name.startswith("eval/"):
            return self._around[evaluation].get(name)
        column = self.columns.get(name)
        if column is None:
            return None
        pairs = zip(column.steps, column.values, strict=True)
        return next((value for step, value in reversed(list(pairs)) if step <= evaluation), None)

    def _last(self, name: str, count: int) -> list[float]:
        column = self.columns.get(name)
        return [] if column is None else column.last(count)

    def names(self, prefix: str) -> list[str]:
        """What stands behind `prefix` in the columns that have it: rewards/format -> format."""
        return [name.removeprefix(prefix) for name in self.columns if name.startswith(prefix)]

    @property
    def recent(self) -> str:
        """The steps that "now" speaks of, for evidence: "steps 11-20"."""
        first = max(self.step - min(self.rows, WINDOW) + 1, 1)
        return f"steps {first}-{self.step}"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def beyond(value: float | None, appear: float, stay: float, standing: bool) -> bool:
    """Whether a value is past its limit: `appear` at first, then only back across `stay` ends it.

    beyond(0.85, 0.9, 0.8, standing=True) holds; at first it would not. Limits that are crossed
    downward are given as appear < stay.
    """
    if value is None:
        return False
    limit = stay if standing else appear
    return value >= limit if appear >= stay else value <= limit


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
