"""Where a step's time goes.

with Clock() as clock:
    with phase("update"):       anywhere below, in the same thread
        ...
clock.phases                    {"update": 0.81}
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field

from groupwise.tracking.activity import doing

_SHOWN = {"logprobs": "log-probs", "update": "learning"}
"""Names of phases on the console. Sampling shows its own progress."""

_current: ContextVar["Clock | None"] = ContextVar("clock", default=None)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Add the time spent inside to phase `name`, on the clock that is open in this thread."""
    began = time.perf_counter()
    if name in _SHOWN:
        doing(_SHOWN[name])
    yield
    spent(name, time.perf_counter() - began)


def spent(name: str, seconds: float) -> None:
    """Add seconds to phase `name`, on the clock that is open in this thread."""
    clock = _current.get()
    if clock is not None:
        clock.phases[name] = clock.phases.get(name, 0.0) + seconds


@dataclass
class Clock:
    """Seconds of one step, and of each phase in it."""

    start: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict)
    _token: "Token[Clock | None] | None" = None

    def __enter__(self) -> "Clock":
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _current.reset(self._token)

    @property
    def total(self) -> float:
        return time.perf_counter() - self.start

    def metrics(self, tokens: int) -> dict[str, float]:
        """Tokens per second are of the step alone, without its evaluation."""
        phases = {f"seconds/{name}": seconds for name, seconds in self.phases.items()}
        speed = tokens / (self.total - self.phases.get("eval", 0.0))
        return {"seconds": self.total, **phases, "tokens_per_second": speed}
