"""What SIGINT and SIGTERM do to a command while nothing of its own takes care of them.

Imported before all else, so it imports next to nothing: Python takes seconds to import the rest,
and a KeyboardInterrupt in the middle of that is swallowed, or shown as a traceback.
"""

import os
import signal
from types import FrameType

from groupwise.errors import STOP_SIGNALS

STOPPED = 3


def leave_when_stopped() -> None:
    """From here on, until something else takes care of signals."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and `&` in scripts ask for
            signal.signal(number, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # a launcher holds them until here


def leave(number: int, frame: FrameType | None) -> None:
    """End at once and quietly: there is nothing to save yet, or all of it is saved."""
    try:
        os.write(2, f"stopped by {signal.Signals(number).name}\n".encode())
    finally:  # also where nobody reads it
        os._exit(STOPPED)


def interrupt_when_stopped() -> None:
    """For commands that clean up when they are interrupted, and that save nothing."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGTERM) is leave:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """KeyboardInterrupt, but not in the middle of an import."""
    outer = frame
    while outer is not None:
        if outer.f_code.co_filename == "<frozen importlib._bootstrap>":
            leave(number, frame)
        outer = outer.f_back
    raise KeyboardInterrupt
