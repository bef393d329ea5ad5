from hypothesis import given
from hypothesis import strategies as st

from groupwise.training.sampler import draw


@given(st.integers(1, 20), st.lists(st.integers(1, 15), min_size=1, max_size=8), st.integers())
def test_the_stream_does_not_depend_on_how_it_is_drawn(
    size: int, counts: list[int], seed: int
) -> None:
    items = list(range(size))
    pieces: list[int] = []
    for count in counts:
        pieces += draw(items, len(pieces), count, seed)
    assert pieces == draw(items, 0, len(pieces), seed)


def test_every_pass_holds_every_item_once_in_another_order() -> None:
    items = list(range(50))
    first, second = draw(items, 0, 50, 1), draw(items, 50, 50, 1)
    assert sorted(first) == sorted(second) == items
    assert first != second != items
    assert draw(items, 0, 50, 2) != first
