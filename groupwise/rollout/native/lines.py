"""The answers in the slots, one line each: whose they are, their tokens so far, where they end.

Plain arrays on the CPU: a burst brings thousands of tokens at once, and looking at them one by one
would take longer than drawing them.
"""

from collections.abc import Collection, Sequence

import numpy as np

from groupwise.rollout.stopping import StopStrings
from groupwise.types import StopReason


class Lines:
    """Active answers fill lines 0 to active - 1."""

    def __init__(
        self, max_tokens: int, spare: int, eos_ids: Sequence[int], stops: StopStrings
    ) -> None:
        self.max_tokens, self.width = max_tokens, max_tokens + spare
        self.eos_ids = np.array(eos_ids, dtype=np.int64)
        self.stops = stops
        self.active = 0
        self.owner: list[tuple[int, int]] = []
        """Request and answer within it, of each active line."""

    def make(self, slots: int) -> None:
        self.tokens = np.zeros((slots, self.width), dtype=np.int64)
        self.logprobs = np.zeros((slots, self.width), dtype=np.float32)
        self.prompt = np.zeros(slots, dtype=np.int64)
        self.count = np.zeros(slots, dtype=np.int64)
        self.keys = np.zeros(slots, dtype=np.uint64)

    @property
    def newest(self) -> np.ndarray:
        """The last token of each active answer, which the next step feeds."""
        return self.tokens[np.arange(self.active), self.count[: self.active] - 1]

    @property
    def fill(self) -> np.ndarray:
        """Tokens whose keys are in each slot: all but the newest."""
        return self.prompt[: self.active] + self.count[: self.active] - 1

    def add(self, request: int, index: int, prompt: int, key: int) -> None:
        """A new answer in the next line; it has no token yet."""
        slot = self.active
        self.prompt[slot], self.count[slot], self.keys[slot] = prompt, 0, key
        self.owner.append((request, index))
        self.active += 1

    def tokens_of(self, slot: int) -> list[int]:
        return self.tokens[slot, : self.count[slot]].tolist()

    def logprobs_of(self, slot: int) -> list[float]:
        return self.logprobs[slot, : self.count[slot]].tolist()

    def extend(
        self, tokens_nK: np.ndarray, logprobs_nK: np.ndarray, first: int = 0
    ) -> dict[int, StopReason]:
        """Append new tokens to the lines from `first` on, each up to its end. Who ended, and why.

        What was drawn past an end is dropped.
        """
        lines = np.arange(first, self.active)
        steps = tokens_nK.shape[1]
        before = self.count[lines]
        places = before[:, None] + np.arange(steps)
        self.tokens[lines[:, None], places] = tokens_nK
        self.logprobs[lines[:, None], places] = logprobs_nK
        never = steps + 1
        is_eos = np.isin(tokens_nK, self.eos_ids)
        eos = np.where(is_eos.any(1), is_eos.argmax(1) + 1, never)
        limit = np.minimum(self.max_tokens - before, never)
        until = np.minimum(np.minimum(eos, limit), steps)
        stop = np.full(len(lines), never)
        if self.stops.strings:
            for n, line in enumerate(lines.tolist()):
                stop[n] = self._stop(line, int(before[n]), int(until[n])) or never
        kept = np.minimum(stop, until)
        self.count[lines] += kept
        reasons: dict[StopReason, np.ndarray] = {"eos": eos, "stop": stop, "length": limit}
        return {
            first + n: next(reason for reason, at in reasons.items() if at[n] == kept[n])
            for n in np.flatnonzero((kept == eos) | (kept == stop) | (kept == limit)).tolist()
        }

    def _stop(self, line: int, before: int, until: int) -> int | None:
        """Which of a line's new tokens, counted from 1, completes a stop string."""
        tokens = self.tokens[line, : before + until].tolist()
        ends = range(1, until + 1)
        return next((n for n in ends if self.stops.just_ended(tokens[: before + n])), None)

    def remove(self, gone: Collection[int]) -> tuple[list[int], list[int]]:
        """Take lines out; the last ones move into their places: from where, to where."""
        left = self.active - len(gone)
        targets = [line for line in sorted(gone) if line < left]
        sources = [line for line in range(left, self.active) if line not in gone]
        for array in (self.tokens, self.logprobs, self.prompt, self.count, self.keys):
            array[targets] = array[sources]
        for source, target in zip(sources, targets, strict=True):
            self.owner[target] = self.owner[source]
        del self.owner[left:]
        self.active = left
        return sources, targets
