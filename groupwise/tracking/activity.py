"""What a run is doing right now, for whoever shows it.

with listening(print):
    doing("sampling", 5, 8)         # sampling 5/8
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str], object]

_listeners: list[Listener] = []


def doing(what: str, done: int | None = None, total: int | None = None) -> None:
    """From any thread."""
    text = what if done is None else f"{what} {done}/{total}"
    for listener in tuple(_listeners):
        listener(text)


def listen(listener: Listener) -> None:
    _listeners.append(listener)


def leave(listener: Listener) -> None:
    _listeners.remove(listener)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    listen(listener)
    try:
        yield
    finally:
        leave(listener)
