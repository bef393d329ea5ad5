"""The diagnosis of a run, in words: what holds now, and what held once and is gone.

Worked out anew from the metrics, so that a run made before a symptom was known shows it too; for a
long run in slices of time.
"""

import threading
import time
from collections import deque
from dataclasses import asdict
from typing import Any

from groupwise.config import Config
from groupwise.diagnose import Change, Watch
from groupwise.errors import GroupwiseError
from groupwise.recipe import parse
from groupwise.view.catalog import Run
from groupwise.view.jsonl_tail import JsonLinesTail
from groupwise.view.settings import read_tree
from groupwise.view.stored_group import Unreadable

SLICE_SECONDS = 1.0


class FindingsLog:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._tail = JsonLinesTail(run.path / "metrics.jsonl")
        self._start()

    def _start(self) -> None:
        self._watch: Watch | None = None
        self._waiting: deque[dict[str, Any]] = deque()
        self._gone: list[Change] = []
        self._read = 0

    def extend(self, seconds: float = SLICE_SECONDS) -> dict[str, Any]:
        """Findings as far as the steps have been looked at: `read` of `rows`."""
        with self._lock:
            new = self._tail.read()
            if new.restarted:
                self._start()
            self._waiting.extend(row for row in map(_numbers, new.rows) if "step" in row)
            self._watch = self._watch or Watch(_config(self._run))
            until = time.monotonic() + seconds
            while self._waiting and time.monotonic() < until:
                changes = self._watch.add(self._waiting.popleft())
                self._gone += [change for change in changes if change.gone]
                self._read += 1
            return {
                "findings": [asdict(finding) for finding in self._watch.standing],
                "gone": [{**asdict(one.finding), "until": one.step} for one in self._gone[-50:]],
                "read": self._read,
                "rows": self._read + len(self._waiting),
            }


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """What of a logged step is a number; without its step if that is none."""
    found = {name: value for name, value in row.items() if isinstance(value, int | float)}
    if not isinstance(found.get("step"), int):
        found.pop("step", None)
    return found


def _config(run: Run) -> Config | None:
    """None for a run of another version, whose settings this one does not know."""
    try:
        return parse(read_tree(run))
    except (GroupwiseError, Unreadable):
        return None
