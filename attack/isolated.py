"""Run something in a forked process: with a time limit, its output, and what it left running.

Forking saves the seconds that importing torch takes. This process adopts whatever a case leaves
behind (it is their subreaper), so an orphan cannot hide.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import os
import pathlib
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

PR_SET_CHILD_SUBREAPER = 36
MEMORY_BYTES = 6 * 2**30
"""Resident memory of a case; the largest honest one takes less than a tenth of it."""
ENDING = (signal.SIGINT, signal.SIGTERM)
"""Blocked while a case is forked, which may be sent one at once: it has our handlers until then."""
GRACE_SECONDS = 8.0
"""Within which what a case started must have ended after it."""


@dataclass(frozen=True)
class Ended:
    """`code`: the exit status, negative for a signal. `orphans`: command lines of what was left."""

    code: int
    output: str
    hung: bool = False
    orphans: tuple[str, ...] = ()


def adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def isolated(
    work: Callable[[], object],
    seconds: float,
    *,
    disturb: Callable[[int], None] | None = None,
) -> Ended:
    """`disturb(pid)` is called in a thread of its own while the work runs."""
    before = children()
    with tempfile.TemporaryFile() as output:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        child = os.fork()
        if child == 0:
            _be_the_child(work, output)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if disturb is not None:
            threading.Thread(target=disturb, args=(child,), daemon=True).start()
        hung = not _ends(child, seconds * slowness())
        if hung:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGUSR1)  # says where it is
                time.sleep(0.5)
                os.killpg(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        orphans = _left(before)
        output.seek(0)
        text = output.read()[-200_000:].decode(errors="replace")
    return Ended(code, text, hung, () if hung else orphans)


def _be_the_child(work: Callable[[], object], output: BinaryIO) -> None:
    code = 1
    try:
        os.setsid()
        # Temporary folders are the parent's to remove.
        weakref.finalize._registry.clear()  # pyright: ignore[reportAttributeAccessIssue]
        for number in ENDING:  # until the command takes care of them
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = open(1, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 255)


def _ends(child: int, seconds: float) -> bool:
    """Whether it ends in time; ended by us where it takes too much memory."""
    descriptor, deadline = os.pidfd_open(child), time.monotonic() + seconds
    try:
        while not select.select([descriptor], [], [], 0.25)[0]:
            if time.monotonic() > deadline:
                return False
            resident = int(pathlib.Path(f"/proc/{child}/statm").read_text().split()[1])
            if resident * os.sysconf("SC_PAGE_SIZE") > MEMORY_BYTES:
                os.kill(child, signal.SIGKILL)
        return True
    finally:
        os.close(descriptor)


def children() -> set[int]:
    """Processes whose parent is this one, zombies not counted: those are reaped."""
    me, found = os.getpid(), set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = (
                pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
            )
            if int(parent) == me and state != "Z":
                found.add(int(entry))
    return found


def slowness() -> float:
    """How many times as long something may take as on an idle machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _left(before: set[int]) -> tuple[str, ...]:
    """What is still running after the grace period; it is ended then."""
    deadline = time.monotonic() + GRACE_SECONDS * slowness()
    while left := children() - before:
        if time.monotonic() > deadline:
            break
        _reap(before)
        time.sleep(0.02)
    named = []
    for process in left:
        with contextlib.suppress(OSError):
            line = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ")
            named.append(line.decode(errors="replace")[:300])
            os.kill(process, signal.SIGKILL)
    _reap(before)
    return tuple(named)


def _reap(before: set[int]) -> None:
    """Collect what ended, but not the servers that the campaign itself started."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in before:
            with contextlib.suppress(OSError):
                os.waitpid(int(entry), os.WNOHANG)
