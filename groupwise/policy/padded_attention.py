"""Attention over packed sequences where FlashAttention's varlen call is not to be had: on a CPU.

Sequences of similar lengths go through one call, padded on the right: a call for each of them costs
more than what a small model computes in it. Padding is never seen: a query sees what is before it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from groupwise.policy.attention import (
    AttentionOptions,
    causal_attention,
    causal_mask,
    grouped_query_attention,
)

FREE_SCORES = 512
"""Of padding for each sequence: what a call of its own costs is about as much as these."""
MAX_SCORES = 2**22
"""Of one call, whose mask has a value for each; a longer sequence has a call of its own."""


class PaddedSequences:
    """Sequence i has the next `seqlens_q[i]` queries, which are the last tokens of its keys."""

    def __init__(
        self, seqlens_q: Sequence[int], kv_index: Sequence[np.ndarray], device: torch.device
    ) -> None:
        first_q = np.cumsum([0, *seqlens_q])
        out_index = np.empty(first_q[-1], np.int64)
        calls = [
            _AttentionCall(members, seqlens_q, kv_index, device)
            for members in _calls(seqlens_q, [len(index) for index in kv_index])
        ]
        rows_q, rows_kv = list[np.ndarray](), list[np.ndarray]()
        rows = 0
        for call in calls:
            for member in call.members:
                queries = first_q[member] + np.arange(seqlens_q[member])
                out_index[queries] = rows + np.arange(seqlens_q[member])
                rows_q.append(_padded(queries, call.width_q))
                rows_kv.append(_padded(kv_index[member], call.width_k))
                rows += call.width_q
        self.calls = calls
        self.q_index, self.kv_index, self.out_index = (
            torch.from_numpy(index).to(device)
            for index in (np.concatenate(rows_q), np.concatenate(rows_kv), out_index)
        )

    def attention(self, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
        """(N, H, D) queries and (M, K, D) keys and values to (1, N, H, D)."""
        seqlens_q = [len(call.members) * call.width_q for call in self.calls]
        seqlens_k = [len(call.members) * call.width_k for call in self.calls]
        queries = _rows(q, self.q_index).split(seqlens_q)
        keys, values = (_rows(x, self.kv_index).split(seqlens_k) for x in (k, v))
        outputs = [
            call.attention(q_own, k_own, v_own, options)
            for call, q_own, k_own, v_own in zip(self.calls, queries, keys, values, strict=True)
        ]
        return _rows(torch.cat(outputs), self.out_index)[None]


class _AttentionCall:
    """Sequences that are computed together."""

    def __init__(
        self,
        members: Sequence[int],
        seqlens_q: Sequence[int],
        kv_index: Sequence[np.ndarray],
        device: torch.device,
    ) -> None:
        self.members = members
        self.width_q = max(seqlens_q[member] for member in members)
        self.width_k = max(len(kv_index[member]) for member in members)
        positions = [
            _padded(np.arange(len(kv_index[member]))[-seqlens_q[member] :], self.width_q)
            for member in members
        ]
        self.positions_BQ = torch.from_numpy(np.stack(positions)).to(device)
        self.causal = all(seqlens_q[member] == len(kv_index[member]) for member in members)
        self._masks: dict[int | None, Tensor] = {}

    def attention(self, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
        """Rows of (B x Q, H, D) queries, (B x K, K, D) keys and values to (B x Q, H, D)."""
        count = len(self.members)
        q, k, v = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (q, k, v))
        if self.causal:
            return causal_attention(q, k, v, options).flatten(0, 1)
        mask = self._mask(options.sliding_window)
        return grouped_query_attention(q, k, v, mask, options).flatten(0, 1)

    def _mask(self, window: int | None) -> Tensor:
        """(B, 1, Q, K): which keys a query sees."""
        if window not in self._masks:
            self._masks[window] = causal_mask(self.positions_BQ[:, None], self.width_k, window)
        return self._masks[window]


def _calls(seqlens_q: Sequence[int], seqlens_k: Sequence[int]) -> Iterator[list[int]]:
    """Which sequences are computed together; whole prompts apart, which need no mask."""

    def order(i: int) -> tuple[bool, int, int]:
        return seqlens_q[i] == seqlens_k[i], seqlens_k[i], seqlens_q[i]

    members, own, width_q = list[int](), 0, 0
    for i in sorted(range(len(seqlens_q)), key=order):
        own, width_q = own + seqlens_q[i] * seqlens_k[i], max(width_q, seqlens_q[i])
        padded = (len(members) + 1) * width_q * seqlens_k[i]
        allowed = min(own + FREE_SCORES * (len(members) + 1), MAX_SCORES)
        if members and (padded > allowed or order(i)[0] != order(members[0])[0]):
            yield members
            members, own, width_q = [], seqlens_q[i] * seqlens_k[i], seqlens_q[i]
        members.append(i)
    if members:
        yield members


def _padded(index: np.ndarray, width: int) -> np.ndarray:
    """The last one again and again."""
    return index[np.minimum(np.arange(width), len(index) - 1)]


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """x[index], whose gradient is added up by whole rows."""
    return x.flatten(1).index_select(0, index).unflatten(1, x.shape[1:])
