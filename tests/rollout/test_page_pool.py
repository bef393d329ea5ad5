"""Reference counts of KV pages, against a plain model of who holds what."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from groupwise.rollout.native.page_pool import PagePool

PAGE, CHUNK, LIMIT = 4, 5, 15


def page_pool(limit: int = LIMIT) -> PagePool:
    pool: PagePool

    def grow() -> int:
        return min(CHUNK, limit - pool.capacity)

    pool = PagePool(PAGE, grow)
    return pool


class Sharing(RuleBasedStateMachine):
    """Sequences of few different tokens come and go; each holds pages for its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = page_pool()
        self.holders: list[tuple[np.ndarray, list[int]]] = []
        self.content: dict[int, tuple[int, ...]] = {}
        """What a real cache would have in each full page: all tokens up to its end."""

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=13))
    def begin(self, tokens: list[int]) -> None:
        context = np.array(tokens)
        held = self.pool.match_prefix(context)
        for n, page in enumerate(held):
            assert self.content[page] == tuple(tokens[: (n + 1) * PAGE])
        assert len(held) * PAGE < len(tokens)
        new = -(-len(tokens) // PAGE) - len(held)
        if not self.pool.reserve(new):
            taken = {page for _, pages in self.holders for page in pages} | set(held)
            assert LIMIT - 1 - len(taken) < new
            self.pool.release(held)
            return
        pages = held + self.pool.alloc(new)
        for n in range(len(held), len(tokens) // PAGE):
            self.content[pages[n]] = tuple(tokens[: (n + 1) * PAGE])
        self.pool.add_prefix(context, pages)
        self.holders.append((context, pages))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        context, pages = data.draw(st.sampled_from(self.holders))
        full = pages[: len(context) // PAGE]
        self.pool.share(full)
        self.holders.append((context[: len(full) * PAGE], full))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.release(self.holders.pop(index)[1])

    @rule()
    def change_weights(self) -> None:
        self.pool.clear_prefix_cache()
        self.content.clear()
        assert not self.pool.cached and self.pool.match_prefix(np.zeros(9)) == []

    @invariant()
    def counts_are_right(self) -> None:
        pool = self.pool
        held = [page for _, pages in self.holders for page in pages]
        assert pool.counts == {page: held.count(page) for page in set(held)}
        assert pool.in_use + len(pool.cached) + pool.free == max(pool.capacity - 1, 0)
        assert not set(pool.cached) & set(held) and not set(pool.free_pages) & {*held, *pool.cached}
        assert 0 not in held and pool.capacity <= LIMIT


TestSharing = Sharing.TestCase


def test_the_least_recently_used_pages_go_first_and_last_pages_before_first_ones() -> None:
    pool = page_pool()
    old, new = np.zeros(6 * PAGE, int), np.ones(5 * PAGE, int)
    assert pool.reserve(11)
    for tokens in (old, new):
        pages = pool.alloc(len(tokens) // PAGE)
        pool.add_prefix(tokens, pages)
        pool.release(pages)
    (held,) = [pool.match_prefix(old[: PAGE + 1])]
    assert len(held) == 1 and len(pool.cached) == 10 and pool.free == 3
    assert pool.reserve(6)  # three of the old ones go, the last first
    pool.release(held)
    assert [len(pool.match_prefix(np.append(tokens, 0))) for tokens in (old, new)] == [3, 5]


def test_pages_that_nobody_uses_are_kept_while_they_are_no_more_than_those_in_use() -> None:
    pool = page_pool()
    assert pool.reserve(4)
    first, second = pool.alloc(2), pool.alloc(2)
    pool.add_prefix(np.zeros(2 * PAGE), first)
    pool.release(first)
    assert pool.reserve(2) and pool.capacity == 2 * CHUNK and len(pool.cached) == 2
    pool.release(second)
    assert pool.reserve(8) and pool.capacity == 2 * CHUNK and len(pool.cached) == 1
