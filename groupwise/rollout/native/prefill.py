"""Attention of the prefill: packed sequences, whose keys and values go to pages of the KV cache."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.batch import copied_to
from groupwise.policy.attention import AttentionOptions, use_attention
from groupwise.policy.packed_attention import PackedSequences
from groupwise.policy.policy import Policy
from groupwise.rollout.native.fused_layers import FusedLayers
from groupwise.rollout.native.kv_cache import PagedKVCache, Place
from groupwise.rollout.native.llama_layer import HeadNorms


@dataclass(frozen=True)
class Context:
    """Tokens that an answer goes on from, and their pages; the first `held` ones are filled."""

    tokens: np.ndarray
    pages: list[int]
    held: int


def prefill(
    policy: Policy,
    cache: PagedKVCache,
    contexts: Sequence[Context],
    layers: FusedLayers | None = None,
) -> Tensor:
    """Fill the contexts' pages; logits of what follows each of them.

    `layers` compute on CUDA what the model's own layers would.
    """
    attention = PrefillAttention(cache, contexts)
    starts = [context.held * cache.page for context in contexts]
    tokens = [c.tokens[start:] for c, start in zip(contexts, starts, strict=True)]
    positions = [np.arange(s, len(c.tokens)) for c, s in zip(contexts, starts, strict=True)]
    packed = torch.from_numpy(np.stack([np.concatenate(tokens), np.concatenate(positions)]))
    input_ids, position_ids = copied_to(packed, cache.device)
    in_use = layers.in_use(attention) if layers else nullcontext()
    with use_attention(policy.model, attention), in_use:
        hidden = policy.body(input_ids=input_ids[None], position_ids=position_ids[None])
    last = copied_to(torch.tensor(list(accumulate(attention.seqlens))) - 1, cache.device)
    return policy.head(hidden[0, last])


class PrefillAttention:
    def __init__(self, cache: PagedKVCache, contexts: Sequence[Context]) -> None:
        self.cache, self.contexts = cache, contexts
        page = cache.page
        self.seqlens = [len(c.tokens) - c.held * page for c in contexts]
        positions = [np.arange(c.held * page, len(c.tokens)) for c in contexts]
        pages = [np.array(c.pages)[p // page] for c, p in zip(contexts, positions, strict=True)]
        self.pages, self.in_page = np.concatenate(pages), np.concatenate(positions) % page
        self.held = np.array([page for c in contexts for page in c.pages[: c.held]], dtype=np.int64)
        self.sequences = PackedSequences(self.seqlens, self._kv_index(), cache.device)

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        layer = module.layer_idx
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        self.cache.write(layer, self._places, k, v)
        return self._attend(layer, q, k, v, options)

    def with_rotary(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotary: tuple[Tensor, Tensor],
        options: AttentionOptions,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """As a call, of (T, heads, 1, D) queries and keys that have no positions yet, nor these
        norms; on CUDA."""
        from groupwise.rollout.native.prefill_kernel import place

        keys_and_values, (q, k, v) = self.cache.layers[layer], (x[:, :, 0] for x in (q, k, v))
        placed = place(q, k, v, rotary, *keys_and_values, self._starts, norms)
        return self._attend(layer, *placed, options)

    @cached_property
    def _places(self) -> list[Place]:
        return self.cache.places(self.pages, self.in_page)

    @cached_property
    def _starts(self) -> Tensor:
        """Where each token's first head begins, in elements from the layer's first page."""
        starts = self.cache.offsets[self.pages] + self.in_page * self.cache.shape.head_size
        return copied_to(torch.from_numpy(starts), self.cache.device)

    def _attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        if len(self.held):
            held = self.cache.read(layer, self.held).transpose(2, 3).flatten(1, 2).to(k.dtype)
            k, v = (torch.cat(pair) for pair in zip(held, (k, v), strict=True))
        return self.sequences.attention(q, k, v, options)

    def _kv_index(self) -> list[np.ndarray]:
        """Keys are those in the held pages of all contexts, then the new ones."""
        kv_index = list[np.ndarray]()
        held, own = 0, len(self.held) * self.cache.page
        for context, seqlen in zip(self.contexts, self.seqlens, strict=True):
            size = context.held * self.cache.page
            parts = [np.arange(held, held + size), np.arange(own, own + seqlen)]
            kv_index.append(np.concatenate(parts))
            held, own = held + size, own + seqlen
        return kv_index
