"""Where a step's time goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from groupwise.types import Group


@dataclass
class Clock:
    """Seconds per phase of one step: `with clock.phase("update"): ...`"""

    start: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - began

    @property
    def total(self) -> float:
        return time.perf_counter() - self.start

    def metrics(self, groups: list[Group]) -> dict[str, float]:
        """Tokens per second are of the step alone, without its evaluation."""
        tokens = sum(len(c.tokens) for group in groups for c in group.completions)
        phases = {f"seconds/{name}": seconds for name, seconds in self.phases.items()}
        speed = tokens / (self.total - self.phases.get("eval", 0.0))
        return {"seconds": self.total, **phases, "tokens_per_second": speed}
