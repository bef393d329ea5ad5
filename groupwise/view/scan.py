"""Search and filters: within a step, or over a whole run in slices of time.

A slice stops after a while and says how far it got, so that a search through a million answers
shows what it has found and can be left at any moment.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from groupwise.view.cards import group_card
from groupwise.view.problem_index import ProblemIndex
from groupwise.view.rollout_files import RolloutFiles
from groupwise.view.stored_group import StoredAnswer, StoredGroup, Unreadable, stored_group

PAGE = 20
SLICE_SECONDS = 1.0
EXCERPT = 240

ANSWER_FILTERS: dict[str, Callable[[StoredAnswer], bool]] = {
    # Judged wrong, and yet made more likely: what reward hacking looks like.
    "wrong_but_rewarded": lambda a: a.right is False and (a.advantage or 0.0) > 0,
    "truncated": lambda a: a.stop == "length",
    "failed": lambda a: a.episode is not None and bool(a.episode.error),
}
GROUP_FILTERS = ("no_spread", "new_best")
FILTERS = ("", *ANSWER_FILTERS, *GROUP_FILTERS)


@dataclass(frozen=True)
class Wanted:
    """What to look for: Wanted("carry", "truncated")"""

    query: str = ""
    filter: str = ""

    @property
    def everything(self) -> bool:
        return not self.query and not self.filter

    def possible(self, line: bytes) -> bool:
        """Cheap and never wrong to refuse: whether the stored line can hold the query.

        Files are ASCII with escapes, so this can be told only of a query that is ASCII itself.
        """
        if not self.query.isascii():
            return True
        return json.dumps(self.query.lower())[1:-1].encode() in line.lower()

    def hits(self, group: StoredGroup, step: int, index: ProblemIndex) -> list[int]:
        """Answers of the group that are wanted."""
        if self.filter == "no_spread" and group.has_spread:
            return []
        if self.filter == "new_best":
            best = index.best_before(group.problem, step)
            if best is None:
                return []
            answers = [a for a in group.whole_answers if (a.reward or 0.0) > best + 1e-8]
        else:
            keep = ANSWER_FILTERS.get(self.filter, lambda _: True)
            answers = [a for a in group.whole_answers if keep(a)]
        query = self.query.lower()
        if query in group.problem.lower() or query in group.prompt.lower():
            return [a.index for a in answers]
        return [a.index for a in answers if query in a.all_text.lower()]


def step_page(
    files: RolloutFiles, step: int, first: int, wanted: Wanted, index: ProblemIndex
) -> dict[str, Any]:
    """Up to a page of a step's groups from group `first` on; `next` is where the next begins."""
    cards: list[dict[str, Any]] = []
    for position, line in enumerate(files.lines(step)):
        if position < first:
            continue
        if len(cards) == PAGE:
            return {"step": step, "groups": cards, "next": position}
        if not wanted.possible(line):
            continue
        try:
            group = stored_group(line, position)
        except Unreadable as error:
            cards.append({"index": position, "problem": str(error), "unreadable": True})
            continue
        hits = wanted.hits(group, step, index)
        if hits or wanted.everything:
            cards.append({**group_card(group), "hits": hits})
    return {"step": step, "groups": cards, "next": None}


def search(
    files: RolloutFiles, after: tuple[int, int], wanted: Wanted, index: ProblemIndex
) -> dict[str, Any]:
    """Answers wanted, from step and group `after` on; `next` says where to go on, None: all done.

    `searched` counts the steps that are done, of `steps`.
    """
    steps = files.steps()
    hits: list[dict[str, Any]] = []
    damaged: list[str] = []
    so_far = {"steps": len(steps), "found": hits, "damaged": damaged}
    until = time.monotonic() + SLICE_SECONDS
    for done, step in enumerate(steps):
        if step < after[0]:
            continue
        first = after[1] if step == after[0] else 0
        if time.monotonic() > until:
            return {**so_far, "searched": done, "next": [step, first]}
        try:
            for position, group in _wanted_groups(files, step, first, wanted):
                hits += _excerpts(group, step, wanted, index)
                if len(hits) >= PAGE:
                    return {**so_far, "searched": done, "next": [step, position + 1]}
        except Unreadable as error:
            damaged.append(str(error))
    return {**so_far, "searched": len(steps), "next": None}


def _wanted_groups(
    files: RolloutFiles, step: int, first: int, wanted: Wanted
) -> Iterator[tuple[int, StoredGroup]]:
    for position, line in enumerate(files.lines(step)):
        if position >= first and wanted.possible(line):
            yield position, stored_group(line, position)


def _excerpts(
    group: StoredGroup, step: int, wanted: Wanted, index: ProblemIndex
) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "group": group.index,
            "answer": hit,
            "problem": group.problem[:EXCERPT],
            "reward": group.answers[hit].reward,
            "advantage": group.answers[hit].advantage,
            "text": _around(group.answers[hit].all_text, wanted.query),
        }
        for hit in wanted.hits(group, step, index)
    ]


def _around(text: str, query: str) -> str:
    at = max(text.lower().find(query.lower()), 0)
    start = max(at - EXCERPT // 3, 0)
    return ("…" if start else "") + text[start : start + EXCERPT]
