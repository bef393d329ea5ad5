"""SIGINT and SIGTERM ask the loop to stop at its next safe point; a second one stops at once.

Before training begins there is nothing to save: loading a model or evaluating it is left at once.
Launchers often send one twice within moments, to a process and to its group: those are one.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType

from groupwise.distributed.world import World
from groupwise.errors import STOP_SIGNALS, STOPPED_AT_ONCE, Interrupted

SAME_SECONDS = 1.0
"""Signals that arrive within this time count as one."""


class StopRequest:
    """`with StopRequest() as stop: ... if stop.requested: save and leave`"""

    def __init__(self) -> None:
        self.requested: str | None = None
        self.at_once = False
        """Whether a signal raises `Interrupted` at once."""
        self._asked_at = 0.0
        self._before: dict[signal.Signals, object] = {}
        self._show = sys.unraisablehook

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
            self._show, sys.unraisablehook = sys.unraisablehook, self._keep
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        if self._before:
            sys.unraisablehook = self._show

    def agreed(self, world: World) -> str | None:
        """The signal that any rank has received. A collective: all ranks call it.

        A signal that arrives during the call is not known to all ranks: the next call returns it.
        """
        signaled = next(filter(None, world.gather(self.requested)), None)
        self.requested = signaled or self.requested
        return signaled

    def _keep(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Python drops exceptions raised in `__del__` and the like: remember that a signal came."""
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            self.requested = self.requested or "a signal"
        else:
            self._show(unraisable)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.at_once:
            # Python drops what is raised in a callback of a library: then the loop stops.
            self.at_once, self.requested, self._asked_at = False, name, time.monotonic()
            raise Interrupted(f"stopped by {name} before training began; nothing was to be saved")
        if self.requested is None:
            self.requested, self._asked_at = name, time.monotonic()
            # Not print: the signal may have arrived in the middle of one.
            os.write(2, b"\nstopping: the run is saved at its next safe point; again: at once\n")
        elif time.monotonic() - self._asked_at > SAME_SECONDS:
            raise Interrupted(STOPPED_AT_ONCE)
