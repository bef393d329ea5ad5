"""Which problems come next: shuffled passes over the data, as a function of a cursor."""

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from groupwise.rollout.noise import answer_key

Item = TypeVar("Item")


class InOrder(list[Item]):
    """Items that are drawn in the order in which they are, pass after pass."""


def draw(items: Sequence[Item], cursor: int, count: int, seed: int) -> list[Item]:
    """Items number `cursor` to `cursor + count` of an endless stream of shuffled passes."""
    drawn: list[Item] = []
    while len(drawn) < count:
        epoch, offset = divmod(cursor + len(drawn), len(items))
        order = range(len(items))
        if not isinstance(items, InOrder):
            order = _order(len(items), epoch, seed)
        drawn += [items[i] for i in order[offset : offset + count - len(drawn)]]
    return drawn


@lru_cache(maxsize=2)
def _order(count: int, epoch: int, seed: int) -> list[int]:
    """Kept for the next draws: problems are drawn one by one, and there may be millions."""
    order = list(range(count))
    random.Random(answer_key(seed, "epoch", epoch)).shuffle(order)
    return order
