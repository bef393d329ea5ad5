"""The metrics of a run as columns, with the few statistics that symptoms are made of.

Rows come one at a time, and a value is looked up in constant time, so that a run of ten thousand
steps is diagnosed in two seconds.
"""

import bisect
import math
import statistics
from collections.abc import Mapping
from typing import Any

WINDOW = 10
"""Steps that "now" is a mean over."""
START = 5
"""Steps that "at the start" is a mean over, and the fewest that anything is said about."""


class History:
    """History().add(row); values that are no finite numbers are counted in `broken` and left out.

    "Now" is the mean of the last `WINDOW` values of a column, "at the start" that of the first
    `START`; None where there are too few.
    """

    def __init__(self) -> None:
        self.columns: dict[str, list[float]] = {}
        self.steps: dict[str, list[int]] = {}
        self.ranges: dict[str, tuple[float, float]] = {}
        """Column -> its least and its greatest value so far."""
        self.broken: dict[str, int] = {}
        """Column -> the last step at which it was not finite."""
        self.step = 0
        self.rows = 0

    def add(self, row: Mapping[str, Any]) -> None:
        self.step = int(row.get("step", self.step + 1))
        self.rows += 1
        for name, value in row.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not math.isfinite(value):
                self.broken[name] = self.step
                continue
            low, high = self.ranges.get(name, (value, value))
            self.ranges[name] = (min(low, value), max(high, value))
            self.columns.setdefault(name, []).append(float(value))
            self.steps.setdefault(name, []).append(self.step)

    def now(self, name: str, window: int = WINDOW) -> float | None:
        values = self.columns.get(name, ())[-window:]
        return sum(values) / len(values) if len(values) >= min(window, START) else None

    def start(self, name: str) -> float | None:
        """The first steps, once there are as many after them."""
        values = self.columns.get(name, ())
        return sum(values[:START]) / START if len(values) >= 2 * START else None

    def earlier(self, name: str, window: int = 2 * WINDOW) -> float | None:
        """The median of the `window` values before the newest `START`."""
        values = sorted(self.columns.get(name, [])[-window - START : -START])
        return values[len(values) // 2] if len(values) >= WINDOW else None

    def noise(self, name: str) -> float:
        """The standard error of `now`, from how much single steps differ."""
        values = self.columns.get(name, [])[-WINDOW:]
        return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0

    def always(self, name: str, value: float) -> bool:
        """Whether the column has been `value` at every one of at least `START` steps."""
        if len(self.columns.get(name, ())) < START:
            return False
        return self.ranges[name] == (value, value)

    def total(self, name: str, rows: int) -> float:
        """The sum over the last `rows` steps; a step without the column counts as 0."""
        values, steps = self.columns.get(name, []), self.steps.get(name, [])
        total = 0.0
        for value, step in zip(reversed(values), reversed(steps), strict=True):
            if step <= self.step - rows:
                break
            total += value
        return total

    def around(self, name: str, step: int, window: int = START) -> float | None:
        """The mean of the `window` values up to `step`."""
        end = bisect.bisect_right(self.steps.get(name, []), step)
        values = self.columns.get(name, [])[max(0, end - window) : end]
        return sum(values) / len(values) if values else None

    def names(self, prefix: str) -> list[str]:
        """What stands behind `prefix` in the columns that have it: rewards/format -> format."""
        return [name.removeprefix(prefix) for name in self.columns if name.startswith(prefix)]

    @property
    def recent(self) -> str:
        """The steps that "now" speaks of, for evidence: "steps 11-20"."""
        first = max(self.step - min(self.rows, WINDOW) + 1, 1)
        return f"steps {first}-{self.step}"


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
