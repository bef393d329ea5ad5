"""Which problems come next: shuffled passes over the data, as a function of a cursor."""

import random
from collections.abc import Sequence
from typing import TypeVar

from groupwise.rollout.noise import answer_key

Item = TypeVar("Item")


def draw(items: Sequence[Item], cursor: int, count: int, seed: int) -> list[Item]:
    """Items number `cursor` to `cursor + count` of an endless stream of shuffled passes."""
    drawn: list[Item] = []
    while len(drawn) < count:
        epoch, offset = divmod(cursor + len(drawn), len(items))
        order = list(range(len(items)))
        random.Random(answer_key(seed, "epoch", epoch)).shuffle(order)
        drawn += [items[i] for i in order[offset : offset + count - len(drawn)]]
    return drawn
