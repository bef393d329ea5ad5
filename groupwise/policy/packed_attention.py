"""Attention over packed rows: each answer sees its shared prompt and itself.

A row is one prompt with its answers one after the other, and then the next prompt: `groups` says
how long each of them is. Each sequence of queries attends to just the keys that it may see. On CUDA
in half precision all sequences go through FlashAttention in one call (varlen_attention.py);
elsewhere those of similar lengths together (padded_attention.py).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.policy.attention import AttentionOptions, current_attention, use_attention
from groupwise.policy.compiled import uncompiled
from groupwise.policy.packing import Rows
from groupwise.policy.padded_attention import PaddedSequences
from groupwise.policy.varlen_attention import VarlenSequences, flash_supports

Groups = Sequence[Sequence[int]]
"""For each group the length of its prompt, then of each of its answers."""


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
        self.sequences = PackedSequences(*group_sequences(groups), device)

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        """(1, H, N, D) queries and (1, K, N, D) keys and values to (1, N, H, D)."""
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        return self.sequences.attention(q, k, v, options)


class PackedSequences:
    """Sequences of queries, one after the other: the last tokens of those that each attends to.

    A prompt of 3 tokens and an answer of 2 have `seqlens_q` 3 and 2; `kv_index` is 0 1 2 for the
    prompt and 0 1 2 3 4 for the answer.
    """

    def __init__(
        self, seqlens_q: Sequence[int], kv_index: Sequence[np.ndarray], device: torch.device
    ) -> None:
        self.seqlens_q, self.kv_index, self.device = seqlens_q, kv_index, device
        cuda = device.type == "cuda"
        self.varlen = VarlenSequences(seqlens_q, kv_index, device) if cuda else None

    def attention(self, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
        """(N, H, D) queries and (M, K, D) keys and values to (1, N, H, D)."""
        if self.varlen is not None and flash_supports(q, options):
            return self.varlen.attention(q, k, v, options)
        return self._padded_attention(q, k, v, options)

    @uncompiled
    def _padded_attention(
        self, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        return self._padded.attention(q, k, v, options)

    @cached_property
    def _padded(self) -> PaddedSequences:
        return PaddedSequences(self.seqlens_q, self.kv_index, self.device)


def group_sequences(groups: Groups) -> tuple[list[int], list[np.ndarray]]:
    """`seqlens_q` and `kv_index` of prompts, each followed by its answers."""
    seqlens_q, kv_index = list[int](), list[np.ndarray]()
    start = 0
    for prompt, *answers in groups:
        prompt_index = np.arange(start, start + prompt)
        seqlens_q.append(prompt)
        kv_index.append(prompt_index)
        start += prompt
        for answer in filter(None, answers):
            seqlens_q.append(answer)
            kv_index.append(np.concatenate([prompt_index, np.arange(start, start + answer)]))
            start += answer
    return seqlens_q, kv_index
