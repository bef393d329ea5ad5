"""Test problems before and after training: eval/before.jsonl and eval/after.jsonl.

Means are worked out from the problems, so that a run that goes on has its first point too.
"""

import threading
from collections.abc import Mapping
from typing import Any

from groupwise.view.catalog import Run
from groupwise.view.jsonl_tail import JsonLinesTail
from groupwise.view.untrusted import finite, mapping, mean, number

MOMENTS = ("before", "after")
PAGE = 50
MOST_PROBLEMS = 20_000
LONGEST_FILE = 200_000_000
LONGEST_ID = 400
# The names of the means, and what they are means of.
MEANS = {"accuracy": "correct", "format": "format", "tokens": "tokens", "truncated": "truncated",
         "reward": "reward", "sampled": "sampled"}  # fmt: skip

Lines = dict[tuple[str, str], dict[str, Any]]
"""The line of each problem, by its id and the digest of its question."""


class HeldOut:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[tuple[int, int], Lines, dict[str, float]]] = {}

    def lines(self, moment: str) -> Lines:
        """Empty where the evaluation is not stored (yet)."""
        return self._read(moment)[0]

    def metrics(self, summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """{"before": {"accuracy": 0.27, ...}, "after": ...}, those that there are.

        pass@k and maj@k are in the summary alone, which is written at the end.
        """
        known: dict[str, dict[str, float]] = {}
        for moment in MOMENTS:
            told = summary.get(moment)
            numbers = {**self._read(moment)[1]}
            if isinstance(told, dict):
                numbers |= {str(n): v for n, v in told.items() if finite(v) is not None}
            if numbers:
                known[moment] = numbers
        return known

    def page(self, first: int, query: str) -> dict[str, Any]:
        """Problems with both their answers, those that changed most first."""
        before, after = self.lines("before"), self.lines("after")
        query = query.lower()
        keys = [
            key
            for key in {**before, **after}
            if not query or any(query in _searched(m.get(key)) for m in (before, after))
        ]
        changes = {key: _change(before.get(key), after.get(key)) for key in keys}
        keys.sort(key=lambda key: (-abs(changes[key] or 0.0), changes[key] or 0.0, key))
        rows = [
            {
                "id": key[0][:LONGEST_ID],
                "change": changes[key],
                "before": _answer(before.get(key)),
                "after": _answer(after.get(key)),
            }
            for key in keys[first : first + PAGE]
        ]
        gained = sum((change or 0) > 0 for change in changes.values())
        lost = sum((change or 0) < 0 for change in changes.values())
        return {"total": len(keys), "gained": gained, "lost": lost, "problems": rows}

    def _read(self, moment: str) -> tuple[Lines, dict[str, float]]:
        try:
            path = self._run.file("eval", f"{moment}.jsonl")
            status = path.stat()
        except OSError:
            return {}, {}
        stamp = (status.st_mtime_ns, status.st_size)
        with self._lock:
            kept = self._kept.get(moment)
            if kept is None or kept[0] != stamp:
                rows = JsonLinesTail(path).read().rows if stamp[1] <= LONGEST_FILE else []
                lines = {
                    (str(row.get("id", "")), str(row.get("question", ""))): row
                    for row in rows[:MOST_PROBLEMS]
                }
                kept = self._kept[moment] = (stamp, lines, _means(lines))
            return kept[1], kept[2]


def _means(lines: Lines) -> dict[str, float]:
    rows = list(lines.values())
    rewards = {str(name) for row in rows for name in mapping(row.get("rewards"))}
    values = {name: [number(row.get(key)) for row in rows] for name, key in MEANS.items()}
    for name in sorted(rewards):
        values[f"rewards/{name}"] = [number(mapping(r.get("rewards")).get(name)) for r in rows]
    means = {name: mean(column) for name, column in values.items()}
    known = {name: value for name, value in means.items() if value is not None}
    return {**known, "problems": float(len(rows))} if rows else {}


def _answer(line: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if line is None:
        return None
    text = line.get("text")
    numbers = {name: number(line.get(name)) for name in ("correct", "reward", "tokens", "sampled")}
    return {
        **numbers,
        "text": text[:4000] if isinstance(text, str) else "",
        "truncated": line.get("truncated") is True,
    }


def _change(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> float | None:
    """By how much the verdict on the greedy answer changed; where nothing judges it, its reward."""
    if before is None or after is None:
        return None
    for name in ("correct", "reward"):
        one, other = number(before.get(name)), number(after.get(name))
        if one is not None and other is not None and (one != other or name == "reward"):
            return other - one
    return 0.0


def _searched(line: Mapping[str, Any] | None) -> str:
    return "" if line is None else f"{line.get('id', '')}\n{line.get('text', '')}".lower()
