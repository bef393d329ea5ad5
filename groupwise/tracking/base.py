"""Where metrics go. A tracker that fails warns once and is dropped; training never stops for it."""

import logging
from collections.abc import Callable, Mapping, Sequence
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
            self._guard(name, lambda name=name, make=make: self._live.update({name: make()}))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, tracker in self._each():
            self._guard(name, lambda tracker=tracker: tracker.log(step, metrics))

    def close(self) -> None:
        for name, tracker in self._each():
            self._guard(name, lambda tracker=tracker: tracker.close())

    def _each(self) -> Sequence[tuple[str, Tracker]]:
        return list(self._live.items())

    def _guard(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._live.pop(name, None)
            log.warning("tracker %s failed and is off for the rest of the run: %s", name, error)
