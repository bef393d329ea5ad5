"""Reference counts of the KV cache's pages, and the prefix cache.

A page holds the keys and values of PAGE consecutive tokens. Answers with the same beginning share
its pages: a page is in use while its reference count is above zero. A full page can be found by the
hash of all tokens up to its end. When no answer uses it any more it stays cached, and a request
that begins with the same tokens uses it again. When memory is needed, the least recently used of
the cached pages are evicted first.
"""

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

PageHash = bytes
"""Of all tokens up to the end of a page."""


class PagePool:
    """`grow` adds memory for more pages and returns for how many; 0 when there is no more.

    Page 0 is never handed out: rows that only pad a batch write there.
    """

    def __init__(self, page: int, grow: Callable[[], int]) -> None:
        self.page, self.grow = page, grow
        self.capacity = 0
        self.next_unused = 1
        self.free_pages: list[int] = []
        """A heap of pages that were in use before and are free: the lowest is taken first."""
        self.counts: dict[int, int] = {}
        self.hash_of: dict[int, PageHash] = {}
        self.page_of: dict[PageHash, int] = {}
        self.cached: OrderedDict[int, None] = OrderedDict()
        """The prefix cache: full pages that no answer uses, least recently used first."""

    @property
    def free(self) -> int:
        return len(self.free_pages) + max(self.capacity - self.next_unused, 0)

    @property
    def in_use(self) -> int:
        return len(self.counts)

    def reserve(self, count: int) -> bool:
        """Make `count` pages free, by new memory or by evicting cached pages.

        There may be as many cached pages as pages in use; beyond that, cached pages are evicted
        before new memory is taken.
        """
        while self.free < count:
            if len(self.cached) <= self.in_use and self._grow():
                continue
            if self.cached:
                self._evict(next(iter(self.cached)))
            elif not self._grow():
                return False
        return True

    def _grow(self) -> bool:
        added = self.grow()
        self.capacity += added
        return added > 0

    def alloc(self, count: int) -> list[int]:
        """`count` pages for one user each; they must have been reserved."""
        assert count <= self.free
        pages = []
        for _ in range(count):
            if self.free_pages:
                pages.append(heapq.heappop(self.free_pages))
            else:
                pages.append(self.next_unused)
                self.next_unused += 1
            self.counts[pages[-1]] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """One more user of each page."""
        for page in pages:
            self.counts[page] = self.counts.get(page, 0) + 1
            self.cached.pop(page, None)

    def release(self, pages: Sequence[int]) -> None:
        """One user less of each page. A sequence's last pages are the first to be evicted."""
        for page in reversed(pages):
            self.counts[page] -= 1
            if self.counts[page] == 0:
                del self.counts[page]
                if page in self.hash_of:
                    self.cached[page] = None
                else:
                    heapq.heappush(self.free_pages, page)

    def match_prefix(self, tokens: np.ndarray) -> list[int]:
        """The pages that hold the beginning of these tokens, now shared with the caller.

        Never the last token's: the model has to see at least one token to predict the next.
        """
        pages = []
        for page_hash in self._page_hashes(tokens[:-1]):
            if page_hash not in self.page_of:
                break
            pages.append(self.page_of[page_hash])
        self.share(pages)
        return pages

    def add_prefix(self, tokens: np.ndarray, pages: Sequence[int]) -> None:
        """These pages hold these tokens: from now on `match_prefix` finds the full ones."""
        for page, page_hash in zip(pages, self._page_hashes(tokens), strict=False):
            if page_hash not in self.page_of and page not in self.hash_of:
                self.page_of[page_hash], self.hash_of[page] = page, page_hash

    def _page_hashes(self, tokens: np.ndarray) -> Iterator[PageHash]:
        digest, held = hashlib.blake2b(digest_size=16), tokens.astype(np.int64).tobytes()
        size = self.page * np.dtype(np.int64).itemsize
        for end in range(size, len(held) + 1, size):
            digest.update(held[end - size : end])
            yield digest.digest()

    def clear_prefix_cache(self) -> None:
        """The weights have changed: no page holds what a new request would compute."""
        for page in list(self.hash_of):
            self._evict(page)

    def _evict(self, page: int) -> None:
        del self.page_of[self.hash_of.pop(page)]
        if page in self.cached:
            del self.cached[page]
            heapq.heappush(self.free_pages, page)
