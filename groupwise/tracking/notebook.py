"""A part of a notebook cell's output that is drawn again in place, as rich's Live is on a terminal.

It needs IPython alone, no widgets, and a notebook that is saved keeps what was drawn last.
"""

import importlib
import time
from typing import Any

from rich.table import Table

SECONDS = 0.5
"""Between two drawings: each is a message to the browser."""


class NotebookPanel:
    """`rich.live.Live` as far as `LiveConsole` uses it."""

    def __init__(self, content: Table) -> None:
        self.content = content
        self.is_started = False
        self._drawn_at = 0.0
        self._handle: Any = None

    def start(self) -> None:
        shown: Any = importlib.import_module("IPython.display")
        self._handle = shown.display(self.content, display_id=True)
        self._drawn_at, self.is_started = time.monotonic(), True

    def update(self, content: Table) -> None:
        self.content = content
        if time.monotonic() - self._drawn_at > SECONDS:
            self._draw()

    def stop(self) -> None:
        self._draw()
        self.is_started = False

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        self._handle.update(self.content)
