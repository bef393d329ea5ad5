"""The KV cache of sampling: keys and values in pages.

It grows by chunks of (layers, 2, pages, heads, PAGE, head size) as answers grow, up to a share of
the free memory. Where a page is, is said by its distance, in elements, from where its layer begins
in the first chunk: that is the same for all layers, for keys and for values, so that CUDA graphs
stay valid when chunks are added.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.policy.attention import AttentionOptions, UnsupportedAttention, use_attention
from groupwise.policy.policy import Policy
from groupwise.rollout.native.limits import CACHE_SHARE, CHUNK_BYTES
from groupwise.rollout.native.memory import free_bytes, zeros_on_demand
from groupwise.rollout.native.page_pool import PagePool

ONE_CHUNK = ("cpu",)
"""Devices whose memory is taken when it is first written to: one chunk can be all there is."""
Place = tuple[int, Tensor, Tensor, Tensor]
"""Where some of several tokens go: chunk, which tokens, their pages in it, positions in those."""


@dataclass(frozen=True)
class KVShape:
    layers: int
    heads: int
    head_size: int
    dtype: torch.dtype
    device: torch.device
    query_heads: int = 0
    """The most that any layer has."""

    @property
    def token_bytes(self) -> int:
        return self.layers * 2 * self.heads * self.head_size * self.dtype.itemsize


class PagedKVCache:
    def __init__(self, shape: KVShape, page: int, max_pages: int | None = None) -> None:
        self.shape, self.page, self.device = shape, page, shape.device
        self.max_pages = max_pages
        self.step = max(CHUNK_BYTES // (shape.token_bytes * page), 16)
        self.chunk_pages = self.step
        self.chunks: list[Tensor] = []
        self.offsets = np.zeros(0, dtype=np.int64)
        """Of each page, in elements, from the beginning of its layer in chunk 0."""
        self.layers: list[tuple[Tensor, Tensor]] = []
        """Each layer's keys and values in chunk 0: (pages, heads, PAGE, head size)."""
        self.pool = PagePool(page, self._grow)

    def _grow(self) -> int:
        """Memory for some more pages, unless that would take too much; how many they are."""
        held = self.pool.capacity
        page_bytes = self.shape.token_bytes * self.page
        room = int(CACHE_SHARE * (free_bytes(self.device) + held * page_bytes)) // page_bytes
        if self.max_pages is not None:
            room = min(room, self.max_pages)
        if not self.chunks:
            self.step = min(self.step, room)
            self.chunk_pages = room if self.device.type in ONE_CHUNK else self.step
        elif self.device.type in ONE_CHUNK:
            room = min(room, self.chunk_pages)
        if room - held < self.step or self.step < 2:
            return 0
        if held + self.step > len(self.chunks) * self.chunk_pages:
            try:
                self._add_chunk()
            except (torch.OutOfMemoryError, MemoryError):
                return 0
        return self.step

    def _add_chunk(self) -> None:
        shape = self.shape
        sizes = (shape.layers, 2, self.chunk_pages, shape.heads, self.page, shape.head_size)
        chunk = zeros_on_demand(sizes, shape.dtype, self.device)
        if not self.chunks:
            # As tensors with storage of their own, which compiled code need not tell apart.
            self.layers = [(torch.from_dlpack(kv[0]), torch.from_dlpack(kv[1])) for kv in chunk]
        self.chunks.append(chunk)
        distance = chunk.data_ptr() - self.chunks[0].data_ptr()
        size = shape.heads * self.page * shape.head_size
        own = distance // shape.dtype.itemsize + np.arange(self.chunk_pages, dtype=np.int64) * size
        self.offsets = np.concatenate([self.offsets, own])

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page)

    def _by_chunk(self, pages: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """(chunk, indices into `pages`) of each chunk that has any of them."""
        chunks = pages // self.chunk_pages
        for chunk in np.unique(chunks):
            yield int(chunk), np.flatnonzero(chunks == chunk)

    def places(self, pages: np.ndarray, positions: np.ndarray) -> list[Place]:
        """Where tokens go that are at these positions of these pages."""
        tensor, size = self._tensor, self.chunk_pages
        return [
            (chunk, tensor(n), tensor(pages[n] % size), tensor(positions[n]))
            for chunk, n in self._by_chunk(pages)
        ]

    def _tensor(self, indices: np.ndarray) -> Tensor:
        return torch.from_numpy(indices).to(self.device)

    def write(self, layer: int, places: list[Place], k_TKD: Tensor, v_TKD: Tensor) -> None:
        k_TKD, v_TKD = (x.to(self.shape.dtype) for x in (k_TKD, v_TKD))
        for chunk, tokens, pages, positions in places:
            keys, values = self.chunks[chunk][layer]
            whole = len(places) == 1
            keys[pages, :, positions] = k_TKD if whole else k_TKD[tokens]
            values[pages, :, positions] = v_TKD if whole else v_TKD[tokens]

    def read(self, layer: int, pages: np.ndarray) -> Tensor:
        """A copy of these pages of a layer: (2, pages, heads, PAGE, head size)."""
        if len(self.chunks) == 1:
            return self.chunks[0][layer].index_select(1, self._tensor(pages))
        copied = self.chunks[0].new_empty(2, len(pages), *self.chunks[0].shape[3:])
        for chunk, n in self._by_chunk(pages):
            own = self.chunks[chunk][layer]
            copied[:, self._tensor(n)] = own[:, self._tensor(pages[n] % self.chunk_pages)]
        return copied

    def copy(self, sources: Sequence[int], targets: Sequence[int], filled: int) -> None:
        """Copy the first `filled` positions of pages, in all layers."""
        source, target = np.array(sources), np.array(targets)
        for a, n in self._by_chunk(source):
            for b, m in self._by_chunk(target[n]):
                from_pages = self._tensor(source[n[m]] % self.chunk_pages)
                to_pages = self._tensor(target[n[m]] % self.chunk_pages)
                copied = self.chunks[a][:, :, from_pages, :, :filled]
                self.chunks[b][:, :, to_pages, :, :filled] = copied


def kv_shape(policy: Policy) -> KVShape:
    """What one token's keys and values are, by showing the model a token."""
    seen: dict[int, tuple[torch.Size, torch.Size, torch.dtype]] = {}
    query_heads = 0

    def look(module: Any, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> Tensor:
        nonlocal query_heads
        query_heads = max(query_heads, q.shape[1])
        seen[module.layer_idx] = (k.shape, v.shape, k.dtype)
        return v.repeat_interleave(q.shape[1] // v.shape[1], 1).transpose(1, 2)

    token = torch.zeros(1, 1, dtype=torch.long, device=policy.device)
    with use_attention(policy.model, look):
        policy.model(input_ids=token, use_cache=False)
    k, _, dtype = seen.get(0, (torch.Size(), torch.Size((0,)), torch.float32))
    if set(seen.values()) != {(k, k, dtype)} or sorted(seen) != list(range(len(seen))):
        raise UnsupportedAttention("its layers have keys and values of different shapes")
    if policy.device.type == "cpu":
        dtype = torch.float32  # which our kernel reads, and CPUs are as fast with
    return KVShape(len(seen), k[1], k[3], dtype, policy.device, query_heads)
