"""Where metrics go. A tracker that fails warns once and is dropped; training never stops for it."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

log = logging.getLogger("groupwise")


class Tracker(Protocol):
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Trackers:
    """Several trackers as one, each contained."""

    def __init__(self, makers: Mapping[str, Callable[[], Tracker]]) -> None:
        self._live: dict[str, Tracker] = {}
        for name, make in makers.items():
            with self._guarded(name):
                self._live[name] = make()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, tracker in list(self._live.items()):
            with self._guarded(name):
                tracker.log(step, metrics)

    def close(self) -> None:
        for name, tracker in list(self._live.items()):
            with self._guarded(name):
                tracker.close()

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._live.pop(name, None)
            log.warning("tracker %s failed and is off for the rest of the run: %s", name, error)
