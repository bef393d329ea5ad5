"""The running answers, one per slot of the KV cache: whose they are, their tokens, where they end.

Plain arrays on the CPU: several decode steps bring thousands of tokens at once, and looking at
them one by one would take longer than sampling them.
"""

from collections.abc import Collection, Sequence

import numpy as np

from groupwise.rollout.stopping import StopStrings
from groupwise.types import StopReason


class RunningBatch:
    """Running answers fill slots 0 to size - 1. `spare`: tokens that may be sampled past an end."""

    def __init__(
        self, max_tokens: int, spare: int, eos_ids: Sequence[int], stops: StopStrings
    ) -> None:
        self.max_tokens, self.width = max_tokens, max_tokens + spare
        self.eos_ids = np.array(eos_ids, dtype=np.int64)
        self.stops = stops
        self.size = 0
        self.owners: list[tuple[int, int]] = []
        """Request and answer within it, of each running answer."""

    def allocate(self, slots: int) -> None:
        self.tokens = np.zeros((slots, self.width), dtype=np.int64)
        self.logprobs = np.zeros((slots, self.width), dtype=np.float32)
        self.prompt_lens = np.zeros(slots, dtype=np.int64)
        self.output_lens = np.zeros(slots, dtype=np.int64)
        self.keys = np.zeros(slots, dtype=np.uint64)

    @property
    def last_tokens(self) -> np.ndarray:
        """The newest token of each running answer, which the next decode step takes as input."""
        return self.tokens[np.arange(self.size), self.output_lens[: self.size] - 1]

    @property
    def kv_lens(self) -> np.ndarray:
        """Tokens whose keys and values are in each slot: all but the newest."""
        return self.prompt_lens[: self.size] + self.output_lens[: self.size] - 1

    def add(self, request: int, answer: int, prompt_len: int, key: int) -> None:
        """A new answer in the next slot; it has no token yet."""
        slot = self.size
        self.prompt_lens[slot], self.output_lens[slot], self.keys[slot] = prompt_len, 0, key
        self.owners.append((request, answer))
        self.size += 1

    def tokens_of(self, slot: int) -> list[int]:
        return self.tokens[slot, : self.output_lens[slot]].tolist()

    def logprobs_of(self, slot: int) -> list[float]:
        return self.logprobs[slot, : self.output_lens[slot]].tolist()

    def append(
        self, tokens_nK: np.ndarray, logprobs_nK: np.ndarray, first: int = 0
    ) -> dict[int, StopReason]:
        """Append new tokens to the answers from slot `first` on; slots that ended, and why.

        What was sampled past an answer's end is dropped.
        """
        slots = np.arange(first, self.size)
        steps = tokens_nK.shape[1]
        before = self.output_lens[slots]
        positions = before[:, None] + np.arange(steps)
        self.tokens[slots[:, None], positions] = tokens_nK
        self.logprobs[slots[:, None], positions] = logprobs_nK
        never = steps + 1
        is_eos = np.isin(tokens_nK, self.eos_ids)
        eos = np.where(is_eos.any(1), is_eos.argmax(1) + 1, never)
        length = np.minimum(self.max_tokens - before, never)
        until = np.minimum(np.minimum(eos, length), steps)
        stop = np.full(len(slots), never)
        if self.stops.strings:
            for n, slot in enumerate(slots.tolist()):
                stop[n] = self._stop(slot, int(before[n]), int(until[n])) or never
        kept = np.minimum(stop, until)
        self.output_lens[slots] += kept
        reasons: dict[StopReason, np.ndarray] = {"eos": eos, "stop": stop, "length": length}
        return {
            first + n: next(reason for reason, at in reasons.items() if at[n] == kept[n])
            for n in np.flatnonzero((kept == eos) | (kept == stop) | (kept == length)).tolist()
        }

    def _stop(self, slot: int, before: int, until: int) -> int | None:
        """Which of a slot's new tokens, counted from 1, completes a stop string."""
        tokens = self.tokens[slot, : before + until].tolist()
        ends = range(1, until + 1)
        return next((n for n in ends if self.stops.just_ended(tokens[: before + n])), None)

    def remove(self, ended: Collection[int]) -> tuple[list[int], list[int]]:
        """Take answers out; the last ones move into their slots: from where, to where."""
        left = self.size - len(ended)
        targets = [slot for slot in sorted(ended) if slot < left]
        sources = [slot for slot in range(left, self.size) if slot not in ended]
        for array in (self.tokens, self.logprobs, self.prompt_lens, self.output_lens, self.keys):
            array[targets] = array[sources]
        for source, target in zip(sources, targets, strict=True):
            self.owners[target] = self.owners[source]
        del self.owners[left:]
        self.size = left
        return sources, targets
