"""A body on its way from the thread that receives it to the one that owns the model."""

import threading
from collections import deque
from collections.abc import Iterator

from groupwise.serve.wire import BadBody

PLACES = 4


class Pipe:
    """The one side `offer`s or `put`s pieces and says `end`; the other iterates over them."""

    def __init__(self) -> None:
        self._pieces: deque[bytes | bytearray] = deque()
        self._changed = threading.Condition()
        self._ended = self._torn = self._left = False

    def offer(self, piece: bytes | bytearray) -> bool:
        """Put a piece if there is room, and never wait."""
        with self._changed:
            if len(self._pieces) >= PLACES:
                return False
            self._pieces.append(piece)
            self._changed.notify_all()
            return True

    def put(self, piece: bytes | bytearray) -> None:
        """Put a piece; wait for room, or for the reader to leave."""
        with self._changed:
            self._changed.wait_for(lambda: self._left or len(self._pieces) < PLACES)
            self._pieces.append(piece)
            self._changed.notify_all()

    def end(self, *, torn: bool = False) -> None:
        """There are no more; `torn`: though there should be."""
        with self._changed:
            self._ended, self._torn = True, self._torn or torn
            self._changed.notify_all()

    def leave(self) -> None:
        """The reader wants no more."""
        with self._changed:
            self._left = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes | bytearray]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces or self._ended)
                if self._torn:
                    raise BadBody("the body ended early")
                if not self._pieces:
                    return
                piece = self._pieces.popleft()
                self._changed.notify_all()
            yield piece
