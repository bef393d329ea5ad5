"""Decode attention over KV pages in torch, for where our Triton kernel does not run.

Pages are the batch of one matrix product. A page that one row holds has that row's queries. A page
that several rows hold, such as a prompt's, is read once for up to ROWS_PER_VISIT of them. What each
page gives is then merged for each row by the maxima and sums of its softmax, which is exact.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from groupwise.policy.attention import AttentionOptions
from groupwise.rollout.native.kv_cache import PagedKVCache

ROWS_PER_VISIT = 8
"""Rows for which a shared page is read together."""
NOWHERE = 2**40
"""Start of a page that no row attends to."""

Partial = tuple[Tensor | None, Tensor | None, Tensor]
"""Of each (visit, row) and query head: its softmax's maximum, sum, and weighted mean of values."""


@dataclass(frozen=True)
class Visits:
    """Pages to attend to, and for each the rows that do: N pages, up to R rows."""

    pages: np.ndarray
    rows_NR: Tensor
    starts_N: Tensor
    """Position in its answer of each page's first token."""
    run: slice | None
    """These pages, where they lie next to each other: then they need not be copied."""

    def visible(self, page: int, kv_lens_n: Tensor) -> int:
        """Positions of a page that any row may see: fewer than all while they are being filled."""
        ends = kv_lens_n[self.rows_NR[:, 0]] + 1 - self.starts_N
        return min(page, int(ends.max()))


class PageAttention:
    def __init__(self, cache: PagedKVCache) -> None:
        self.cache = cache
        self.table: np.ndarray | None = None
        self.visits: list[Visits] = []
        self.masks: dict[tuple[int, int | None], Tensor | None] = {}

    def begin_step(self, table_nw: np.ndarray, counts_n: np.ndarray, kv_lens_n: np.ndarray) -> None:
        cache, page = self.cache, self.cache.page
        if self.table is None or not np.array_equal(self.table, table_nw):
            self.table = table_nw.copy()
            self._find_visits(table_nw, counts_n)
        rows = np.arange(len(table_nw))
        self.new_places = cache.places(table_nw[rows, kv_lens_n // page], kv_lens_n % page)
        self.kv_lens = torch.from_numpy(kv_lens_n).to(cache.device)
        self.visible = [visits.visible(page, self.kv_lens) for visits in self.visits]
        self.masks.clear()

    def _find_visits(self, table_nw: np.ndarray, counts_n: np.ndarray) -> None:
        """Which rows visit which pages; `merged` says where each row's partial results are."""
        held = np.arange(table_nw.shape[1]) < counts_n[:, None]
        rows, ordinals = np.nonzero(held)
        pages, starts = table_nw[held], ordinals * self.cache.page
        _, inverse, count = np.unique(pages, return_inverse=True, return_counts=True)
        alone = count[inverse] == 1
        results = np.zeros(len(pages), dtype=np.int64)
        self.visits, first = [], 0
        for chosen, most in ((alone, 1), (~alone, ROWS_PER_VISIT)):
            if chosen.any():
                visits, own = self._visits(pages[chosen], rows[chosen], starts[chosen], most)
                results[chosen] = first + own
                first += visits.rows_NR.numel()
                self.visits.append(visits)
        merged = np.zeros(table_nw.shape, dtype=np.int64)
        merged[held] = results
        device = self.cache.device
        self.merges = table_nw.shape[1] > 1
        self.merged = torch.from_numpy(merged.flatten()).to(device)
        self.missing_nw1 = None if held.all() else torch.from_numpy(~held).to(device)[:, :, None]

    def _visits(
        self, pages: np.ndarray, rows: np.ndarray, starts: np.ndarray, most: int
    ) -> tuple[Visits, np.ndarray]:
        """Visits of at most so many rows each, and which result of theirs is whose."""
        order = np.argsort(pages, kind="stable")
        distinct, first, count = np.unique(pages[order], return_index=True, return_counts=True)
        width = min(int(count.max()), most)
        nth = np.empty(len(pages), dtype=np.int64)
        nth[order] = np.arange(len(pages)) - np.repeat(first, count)
        low, high = int(distinct[0]), int(distinct[-1]) + 1
        run = None
        if width == 1 and high - low <= 2 * len(distinct) and len(self.cache.chunks) == 1:
            run, visited = slice(low, high), np.arange(low, high)
            visit = pages - low
        else:
            each = -(-count // width)
            visited = np.repeat(distinct, each)
            visit = (np.cumsum(each) - each)[np.searchsorted(distinct, pages)] + nth // width
        rows_NR = np.zeros((len(visited), width), dtype=np.int64)
        starts_N = np.full(len(visited), NOWHERE)
        rows_NR[visit, nth % width] = rows
        starts_N[visit] = starts
        on_device = (torch.from_numpy(x).to(self.cache.device) for x in (rows_NR, starts_N))
        return Visits(visited, next(on_device), next(on_device), run), visit * width + nth % width

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions
    ) -> Tensor:
        """(n, H, 1, D) queries, (n, K, 1, D) new keys and values to (n, 1, H, D)."""
        self.cache.write(layer, self.new_places, k[:, :, 0], v[:, :, 0])
        rows, heads, _, size = q.shape
        scaled = q.to(self.cache.shape.dtype) * options.scale
        q_nKGD = scaled.view(rows, k.shape[1], -1, size)
        parts = [self._partial(layer, i, q_nKGD, options) for i in range(len(self.visits))]
        maxima, sums, values = parts[0]
        if len(parts) > 1:
            maxima, sums, values = (torch.cat(x) for x in zip(*parts, strict=True))
        values = values.index_select(0, self.merged)
        if maxima is None or sums is None:
            return values.view(rows, 1, heads, size).to(q.dtype)
        maxima = maxima.index_select(0, self.merged).view(rows, -1, heads)
        if self.missing_nw1 is not None:
            maxima = maxima.masked_fill(self.missing_nw1, -torch.inf)
        sums = sums.index_select(0, self.merged).view(rows, -1, heads)
        weights = (maxima - maxima.amax(1, keepdim=True)).exp_() * sums
        weights = weights / weights.sum(1, keepdim=True)
        out = (values.view(rows, -1, heads, size) * weights[..., None]).sum(1)
        return out[:, None].to(q.dtype)

    def _partial(
        self, layer: int, index: int, q_nKGD: Tensor, options: AttentionOptions
    ) -> Partial:
        visits = self.visits[index]
        count, width = visits.rows_NR.shape
        _, kv_heads, shared, size = q_nKGD.shape
        if visits.run is not None:
            keys, values = (x[visits.run] for x in self.cache.layers[layer])
        else:
            keys, values = self.cache.read(layer, visits.pages)
        keys, values = (x[:, :, : self.visible[index]].flatten(0, 1) for x in (keys, values))
        q = q_nKGD.index_select(0, visits.rows_NR.flatten()).view(count, width, kv_heads, -1, size)
        q = q.transpose(1, 2).reshape(count * kv_heads, width * shared, size)
        mask = self._mask(index, options.sliding_window, kv_heads, shared, q.dtype)
        if options.softcap is not None:
            scores = torch.tanh(q @ keys.mT / options.softcap) * options.softcap
            scores = scores if mask is None else scores + mask
        else:
            scores = q @ keys.mT if mask is None else torch.baddbmm(mask, q, keys.mT)
        scores = scores.float()
        weights = scores.softmax(-1)
        weighted = (weights.to(values.dtype) @ values).float()

        def by_row(x: Tensor) -> Tensor:
            split = x.view(count, kv_heads, width, shared, -1).transpose(1, 2)
            return split.reshape(count * width, kv_heads * shared, -1)

        if not self.merges:
            return None, None, by_row(weighted)
        # The largest weight is 1 / sum: cheaper to look up than to sum exponentials once more.
        maxima, sums = scores.amax(-1, keepdim=True), 1 / weights.amax(-1, keepdim=True)
        return by_row(maxima)[..., 0], by_row(sums)[..., 0], by_row(weighted)

    def _mask(
        self, index: int, window: int | None, kv_heads: int, shared: int, dtype: torch.dtype
    ) -> Tensor | None:
        """Added to the scores: 0 where a token sees a position (up to itself, or its window's part
        of that), very little elsewhere. Shared pages lie before all tokens that are new."""
        if (index, window) not in self.masks:
            visits = self.visits[index]
            count, width = visits.rows_NR.shape
            if width > 1 and window is None:
                self.masks[index, window] = None
                return None
            positions = torch.arange(self.visible[index], device=self.cache.device)
            position = visits.starts_N[:, None, None] + positions
            newest = self.kv_lens[visits.rows_NR][:, :, None]
            hidden = position > newest
            if window is not None:
                hidden |= newest - position >= window
            lowest = torch.finfo(dtype).min / 4
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            mask = mask.masked_fill_(hidden, lowest)[:, None, :, None]
            each = shared if width > 1 else 1
            mask = mask.expand(count, kv_heads, width, each, -1)
            self.masks[index, window] = mask.reshape(count * kv_heads, width * each, -1)
        return self.masks[index, window]
