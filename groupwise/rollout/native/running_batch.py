"""The running answers, one per row: whose they are, their tokens and pages, where they end.

Plain arrays on the CPU: several decode steps bring thousands of tokens at once, and looking at
them one by one would take longer than sampling them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from groupwise.rollout.stopping import StopStrings
from groupwise.types import Sampling, StopReason


@dataclass(eq=False)
class RunningAnswer:
    """An answer that waits or runs. What it has so far is here while it waits."""

    call: Any
    """Who asked for it."""
    index: int
    prompt: np.ndarray
    key: int
    sampling: Sampling
    """How its tokens are drawn, without `max_tokens` and `stop`, which say where it ends."""
    max_tokens: int
    stops: StopStrings
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    logprobs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    versions: list[tuple[int, int]] = field(default_factory=list)
    """(first token, version of the weights that drew it and those after it)."""
    prefilled_by: int = 0
    """Which loading of weights computed its first keys and values."""

    @property
    def context(self) -> np.ndarray:
        return np.concatenate([self.prompt, self.tokens])


class RunningBatch:
    """Running answers are rows 0 to size - 1. `spare`: tokens that may be drawn past an end."""

    def __init__(self, rows: int, spare: int, eos_ids: Sequence[int]) -> None:
        self.spare = spare
        self.eos_ids = np.array(eos_ids, dtype=np.int64)
        self.size = 0
        self.admitted = self.membership = self.paging = 0
        """Answers so far; how often rows were added or removed, and how often pages were added."""
        self.answers: list[RunningAnswer] = []
        self.pages: list[list[int]] = []
        self.tokens = np.zeros((rows, 0), dtype=np.int64)
        self.logprobs = np.zeros((rows, 0), dtype=np.float32)
        self.table = np.zeros((rows, 0), dtype=np.int64)
        """Each row's pages, then zeros."""
        self.page_counts, self.prompt_lens, self.output_lens, self.max_tokens, self.age = np.zeros(
            (5, rows), dtype=np.int64
        )
        """`age`: how many answers were admitted before this one was."""
        self.keys = np.zeros(rows, dtype=np.uint64)
        self._groups: list[tuple[Sampling, np.ndarray]] = []
        self._grouped_at = 0

    @property
    def last_tokens(self) -> np.ndarray:
        """The newest token of each running answer, which the next decode step takes as input."""
        return self.tokens[np.arange(self.size), self.output_lens[: self.size] - 1]

    @property
    def kv_lens(self) -> np.ndarray:
        """Tokens whose keys and values are in each row's pages: all but the newest."""
        return self.prompt_lens[: self.size] + self.output_lens[: self.size] - 1

    @property
    def max_kv_lens(self) -> np.ndarray:
        """What the pages of each row will have to hold at most."""
        return self.prompt_lens[: self.size] + self.max_tokens[: self.size] - 1

    def add(self, answer: RunningAnswer, pages: list[int]) -> None:
        """One more row. It has the tokens that the answer had when it had to wait, if any."""
        row, so_far = self.size, len(answer.tokens)
        self.tokens = _widened(self.tokens, answer.max_tokens + self.spare)
        self.logprobs = _widened(self.logprobs, answer.max_tokens + self.spare)
        self.tokens[row, :so_far], self.logprobs[row, :so_far] = answer.tokens, answer.logprobs
        self.prompt_lens[row], self.output_lens[row] = len(answer.prompt), so_far
        self.keys[row], self.max_tokens[row] = answer.key, answer.max_tokens
        self.age[row], self.page_counts[row], self.table[row] = self.admitted, 0, 0
        self.answers.append(answer)
        self.pages.append([])
        self.size += 1
        self.admitted += 1
        self.membership += 1
        self.add_pages(row, pages)

    def add_pages(self, row: int, pages: list[int]) -> None:
        before = len(self.pages[row])
        self.pages[row] += pages
        self.table = _widened(self.table, len(self.pages[row]))
        self.table[row, before : len(self.pages[row])] = pages
        self.page_counts[row] = len(self.pages[row])
        self.paging += 1

    def by_sampling(self) -> list[tuple[Sampling, np.ndarray]]:
        """The rows of each `Sampling`."""
        if self._grouped_at != self.membership:
            rows: dict[Sampling, list[int]] = {}
            for row, answer in enumerate(self.answers):
                rows.setdefault(answer.sampling, []).append(row)
            self._groups = [(sampling, np.array(own)) for sampling, own in rows.items()]
            self._grouped_at = self.membership
        return self._groups

    def tokens_of(self, row: int) -> np.ndarray:
        return self.tokens[row, : self.output_lens[row]]

    def logprobs_of(self, row: int) -> np.ndarray:
        return self.logprobs[row, : self.output_lens[row]]

    def context_of(self, row: int) -> np.ndarray:
        """The tokens that a row's pages hold."""
        return np.concatenate([self.answers[row].prompt, self.tokens_of(row)])[: self.kv_lens[row]]

    def append(
        self, rows: np.ndarray, tokens_nK: np.ndarray, logprobs_nK: np.ndarray, version: int = 0
    ) -> dict[int, StopReason]:
        """Append new tokens, drawn by these weights, to rows; those that ended, and why.

        What was drawn past an answer's end is dropped.
        """
        steps = tokens_nK.shape[1]
        before = self.output_lens[rows]
        positions = before[:, None] + np.arange(steps)
        self.tokens[rows[:, None], positions] = tokens_nK
        self.logprobs[rows[:, None], positions] = logprobs_nK
        never = steps + 1
        is_eos = np.isin(tokens_nK, self.eos_ids)
        eos = np.where(is_eos.any(1), is_eos.argmax(1) + 1, never)
        length = np.minimum(self.max_tokens[rows] - before, never)
        until = np.minimum(np.minimum(eos, length), steps)
        stop = np.full(len(rows), never)
        for n, row in enumerate(rows.tolist()):
            answer = self.answers[row]
            if not answer.versions or answer.versions[-1][1] != version:
                answer.versions.append((int(before[n]), version))
            if answer.stops.strings:
                stop[n] = self._stop(row, int(before[n]), int(until[n])) or never
        kept = np.minimum(stop, until)
        self.output_lens[rows] += kept
        reasons: dict[StopReason, np.ndarray] = {"eos": eos, "stop": stop, "length": length}
        return {
            int(rows[n]): next(reason for reason, at in reasons.items() if at[n] == kept[n])
            for n in np.flatnonzero((kept == eos) | (kept == stop) | (kept == length)).tolist()
        }

    def _stop(self, row: int, before: int, until: int) -> int | None:
        """Which of a row's new tokens, counted from 1, completes a stop string."""
        tokens = self.tokens[row, : before + until].tolist()
        just_ended = self.answers[row].stops.just_ended
        return next((n for n in range(1, until + 1) if just_ended(tokens[: before + n])), None)

    def remove(self, gone: Collection[int]) -> None:
        """Take rows out; the last ones move into their places."""
        left = self.size - len(gone)
        targets = [row for row in sorted(gone) if row < left]
        sources = [row for row in range(left, self.size) if row not in gone]
        for array in (
            *(self.tokens, self.logprobs, self.table, self.page_counts),
            *(self.prompt_lens, self.output_lens, self.max_tokens, self.age, self.keys),
        ):
            array[targets] = array[sources]
        for source, target in zip(sources, targets, strict=True):
            self.answers[target], self.pages[target] = self.answers[source], self.pages[source]
        del self.answers[left:], self.pages[left:]
        self.size = left
        self.membership += 1


def _widened(array: np.ndarray, width: int) -> np.ndarray:
    """The array with at least so many columns; it grows by more than asked for, to do so rarely."""
    if width <= array.shape[1]:
        return array
    wider = np.zeros((len(array), max(width, array.shape[1] * 3 // 2)), dtype=array.dtype)
    wider[:, : array.shape[1]] = array
    return wider
