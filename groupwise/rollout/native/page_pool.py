"""Which pages of the KV cache are in use, by how many answers, and what the others still hold.

A page holds the keys and values of PAGE consecutive tokens. Answers with the same beginning share
the pages of it: a page is in use while its reference count is above zero. A full page can be named
after the tokens up to its end. When nobody uses it any more it stays, and whoever begins with the
same tokens takes it again, until room is needed: the least recently used goes first.
"""

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

Name = bytes
"""Digest of all tokens up to the end of a page."""


class PagePool:
    """`grow` adds memory for some more pages and says for how many; 0 when there is no more.

    Page 0 is never handed out: rows that only pad a batch write there.
    """

    def __init__(self, page: int, grow: Callable[[], int]) -> None:
        self.page, self.grow = page, grow
        self.capacity = 0
        self.next_unused = 1
        self.returned: list[int] = []
        """A heap of pages that are free and were in use before: the lowest is taken first."""
        self.counts: dict[int, int] = {}
        self.names: dict[int, Name] = {}
        self.named: dict[Name, int] = {}
        self.kept: OrderedDict[int, None] = OrderedDict()
        """Named pages that nobody uses, least recently used first."""

    @property
    def free(self) -> int:
        return len(self.returned) + max(self.capacity - self.next_unused, 0)

    @property
    def in_use(self) -> int:
        return len(self.counts)

    def reserve(self, count: int) -> bool:
        """Make `count` pages free: by memory that is left, and by pages that are merely kept.

        Kept pages may be as many as those in use; beyond that they go before memory is taken.
        """
        while self.free < count:
            if len(self.kept) <= self.in_use and self._grow():
                continue
            if self.kept:
                self._forget(next(iter(self.kept)))
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
            if self.returned:
                pages.append(heapq.heappop(self.returned))
            else:
                pages.append(self.next_unused)
                self.next_unused += 1
            self.counts[pages[-1]] = 1
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """One more user of each page."""
        for page in pages:
            self.counts[page] = self.counts.get(page, 0) + 1
            self.kept.pop(page, None)

    def release(self, pages: Sequence[int]) -> None:
        """One user less of each page. A sequence's last pages are the first to be forgotten."""
        for page in reversed(pages):
            self.counts[page] -= 1
            if self.counts[page] == 0:
                del self.counts[page]
                if page in self.names:
                    self.kept[page] = None
                else:
                    heapq.heappush(self.returned, page)

    def match(self, tokens: np.ndarray) -> list[int]:
        """The pages that hold the beginning of these tokens, now shared with the caller.

        Never the last token's: the model has to see at least one, to say what comes next.
        """
        pages = []
        for name in self._names_of(tokens[:-1]):
            if name not in self.named:
                break
            pages.append(self.named[name])
        self.share(pages)
        return pages

    def name(self, tokens: np.ndarray, pages: Sequence[int]) -> None:
        """These pages hold these tokens; the full ones can be found by them from now on."""
        for page, name in zip(pages, self._names_of(tokens), strict=False):
            if name not in self.named and page not in self.names:
                self.named[name], self.names[page] = page, name

    def _names_of(self, tokens: np.ndarray) -> Iterator[Name]:
        digest, held = hashlib.blake2b(digest_size=16), tokens.astype(np.int64).tobytes()
        size = self.page * np.dtype(np.int64).itemsize
        for end in range(size, len(held) + 1, size):
            digest.update(held[end - size : end])
            yield digest.digest()

    def forget_names(self) -> None:
        """The weights have changed: no page holds what a new request would compute."""
        for page in list(self.names):
            self._forget(page)

    def _forget(self, page: int) -> None:
        del self.named[self.names.pop(page)]
        if page in self.kept:
            del self.kept[page]
            heapq.heappush(self.returned, page)
