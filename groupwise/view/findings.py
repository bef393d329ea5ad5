"""The diagnosis of a run, in words: what holds now, and what held once and is gone.

Worked out anew from the metrics, so that a run made before a symptom was known shows it too; for a
long run in slices of time.
"""

import threading
import time
from collections import deque
from dataclasses import asdict, fields
from typing import Any, get_args

from groupwise.config import Config
from groupwise.diagnose import Finding, FindingChange, Watch
from groupwise.diagnose.finding import Severity
from groupwise.errors import GroupwiseError
from groupwise.recipe import parse
from groupwise.view.catalog import Run
from groupwise.view.jsonl_tail import JsonLinesTail
from groupwise.view.settings import read_tree
from groupwise.view.stored_group import Unreadable
from groupwise.view.untrusted import read_summary, whole

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
        self._gone: list[FindingChange] = []
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
            standing = [asdict(finding) for finding in self._watch.standing]
            if not self._waiting:
                standing = self._with_outcome(standing)
            return {
                "findings": standing,
                "gone": [{**asdict(one.finding), "until": one.step} for one in self._gone[-50:]],
                "read": self._read,
                "rows": self._read + len(self._waiting),
            }

    def _with_outcome(self, standing: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """With what the end of the run added to it: its evaluations are not among the steps."""
        summary = read_summary(self._run)
        told, last = summary.get("findings"), self._watch.history.step if self._watch else 0
        if summary.get("steps") != last or not isinstance(told, list):
            return standing
        known = {finding["code"] for finding in standing}
        return standing + [one for one in told if _is_finding(one) and one["code"] not in known]


def _is_finding(told: Any) -> bool:
    """Whether what a summary holds is one: anyone may have written that file."""
    if not isinstance(told, dict) or told.keys() != {field.name for field in fields(Finding)}:
        return False
    texts = all(isinstance(value, str) for name, value in told.items() if name != "step")
    return texts and type(told["step"]) is int and told["severity"] in get_args(Severity)


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """What of a logged step is a number; without its step if that is none."""
    numbers = {
        name: value
        for name, value in row.items()
        if isinstance(value, float) or whole(value) is not None
    }
    if whole(numbers.get("step")) is None:
        numbers.pop("step", None)
    return numbers


def _config(run: Run) -> Config | None:
    """None for a run of another version, whose settings this one does not know."""
    try:
        return parse(read_tree(run))
    except (GroupwiseError, Unreadable):
        return None
