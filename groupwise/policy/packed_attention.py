"""Attention over packed rows: each answer sees its shared prompt and itself.

A row is one prompt with its answers one after the other, and then the next prompt: `groups` says
how long each of them is. Each sequence of queries attends to just the keys that it may see, so
nothing is computed to be masked away and nothing is padded. On CUDA in half precision all sequences
go through FlashAttention in one call (varlen_attention.py); elsewhere one after the other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from groupwise.policy.attention import (
    AttentionOptions,
    causal_attention,
    causal_mask,
    current_attention,
    grouped_query_attention,
    use_attention,
)
from groupwise.policy.compiled import uncompiled
from groupwise.policy.packing import Rows
from groupwise.policy.varlen_attention import Groups, flash_supports, group_sequences


@contextmanager
def use_packed_attention(model: Any, rows: Rows) -> Iterator[None]:
    """The attention that `rows` need, while this is open; backward included."""
    current = current_attention(model)
    if rows.groups is None or (
        isinstance(current, PackedAttention) and current.groups is rows.groups
    ):
        yield
        return
    with use_attention(model, PackedAttention(rows.groups, rows.tokens_RS.device)):
        yield


class PackedAttention:
    def __init__(self, groups: Groups, device: torch.device) -> None:
        self.groups = groups
        self.seqlens = list(chain.from_iterable(groups))
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}
        self.varlen = None if device.type != "cuda" else group_sequences(groups, device)

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        """(1, H, N, D) queries and (1, K, N, D) keys and values to (1, N, H, D)."""
        if self.varlen is not None and flash_supports(q, options):
            q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
            return self.varlen.attention(q, k, v, options)
        return self._one_by_one(q, k, v, options)

    @uncompiled
    def _one_by_one(self, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
        sequences = zip(*(x.split(self.seqlens, dim=2) for x in (q, k, v)), strict=True)
        outputs: list[Tensor] = []
        for seqlens in self.groups:
            q_own, k_prompt, v_prompt = next(sequences)
            outputs.append(causal_attention(q_own, k_prompt, v_prompt, options))
            for seqlen in seqlens[1:]:
                q_own, k_own, v_own = next(sequences)
                if seqlen:
                    keys = torch.cat([k_prompt, k_own], dim=2)
                    values = torch.cat([v_prompt, v_own], dim=2)
                    mask = self._mask(seqlen, keys.shape[2], options.sliding_window, q.device)
                    outputs.append(grouped_query_attention(q_own, keys, values, mask, options))
        return torch.cat(outputs, dim=1)

    def _mask(self, queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
        if (queries, keys, window) not in self._masks:
            self._masks[queries, keys, window] = causal_mask(queries, keys, window, device)
        return self._masks[queries, keys, window]
