"""python reaper.py LIFELINE PROGRAM ARGUMENT...: a program that ends with all that it has started.

It ends by itself, or when the other end of the pipe LIFELINE is closed: by whoever started us, or
because that one is gone, killed with -9 too. On Linux whatever the program has started and left,
daemons in sessions of their own among them, then becomes a child of this process (a subreaper) and
is killed; elsewhere the program's process group is. We end as the program did.

This file is run by its path and imports nothing of groupwise, so that starting takes no time.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
LINUX = sys.platform == "linux"
SECONDS = 10.0
"""After which what cannot be killed is left."""


def main(lifeline: int, command: list[str]) -> None:
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    ours = os.getpid()
    program = os.fork()
    if program == 0:
        _become(command, lifeline, ours)
    os.closerange(0, lifeline)  # its pipes and sockets are not ours to keep open
    os.closerange(lifeline + 1, 65536)
    ended = threading.Event()

    def watch() -> None:
        os.read(lifeline, 1)  # nobody ever writes: it returns when the other end is closed
        if not ended.is_set():
            os.kill(program, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    status = _status_of(program)
    ended.set()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program, signal.SIGKILL)
    _kill_children()
    _end_as(os.waitstatus_to_exitcode(status))


def _become(command: list[str], lifeline: int, parent: int) -> None:
    os.setsid()
    os.close(lifeline)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:  # it may have ended before we asked for that
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"cannot be started: {error.strerror}\n".encode())
    os._exit(127)


def _status_of(program: int) -> int:
    """Its exit status, once it has ended; what we adopted and ended before it is collected too."""
    while True:
        number, status = os.waitpid(-1, 0)
        if number == program:
            return status


def _kill_children() -> None:
    """What each of them has started becomes our child when it has ended: more than once."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.005)


def _children() -> list[int]:
    children = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                children.append(int(name))
    return children


def _end_as(code: int) -> None:
    """A negative code is a signal's number."""
    if code < 0:
        _prctl(PR_SET_DUMPABLE, 0)
        if code not in (-signal.SIGKILL, -signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
