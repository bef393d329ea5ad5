"""How this machine can isolate a program, decided once by a trial that attempts to break out.

A way counts only if a program that tries what is forbidden is refused all of it and can still
compute. The filter on system calls is part of every way; what differs is who hides the files and
the other processes. Nothing switches this off: a machine without any of the ways runs no programs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from groupwise.errors import RewardError
from groupwise.rewards.sandbox.filter import compiled_filter
from groupwise.rewards.sandbox.launch import READY
from groupwise.rewards.sandbox.run import command

FIX = (
    "code rewards and the tool python need Linux with libseccomp (apt install libseccomp2) and "
    "one of: user namespaces (sysctl kernel.unprivileged_userns_clone=1, and on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container, a seccomp profile that allows "
    "them), bubblewrap (apt install bubblewrap), or Landlock (Linux 5.13 with it in lsm=)"
)
_TRIAL_SECONDS = 20

# What works of this is printed; the last lines show that ordinary things do.
_TRIAL = """
import ctypes, math, os, socket, sys, threading
secret, parent = input(), input()
libc = ctypes.CDLL(None)
def native(function, *arguments):
    if function(*arguments) < 0:
        raise OSError
for name, act in {
    "write files": lambda: open("written", "w"),
    "read a file of yours": lambda: open(secret),
    "read your environment": lambda: open(f"/proc/{parent}/environ", "rb").read(),
    "see processes": lambda: os.listdir("/proc"),
    "open a socket": lambda: socket.socket(),
    "start a process": lambda: os.fork() or os._exit(0),
    "send a signal": lambda: os.kill(int(parent), 0),
    "make namespaces": lambda: native(libc.unshare, 0x10000000),
    "trace": lambda: native(libc.ptrace, 0, 0, 0, 0),
    "share memory": lambda: native(libc.shmctl, libc.shmget(0, 4096, 0o600), 0, None),
}.items():
    try:
        act()
        print("a program could", name, flush=True)
    except OSError:
        pass
thread = threading.Thread(target=lambda: print(math.comb(10, 5)))
thread.start()
thread.join()
"""


def check_isolation() -> str:
    """The way that holds on this machine. Raises RewardError if none does."""
    way, failures = _first_that_holds()
    if way is None:
        raise RewardError(
            f"this machine cannot isolate the programs that models write ({failures}). fix: {FIX}"
        )
    return way


def possible_ways() -> list[str]:
    """In the order of preference. Root can give a program a user of its own, bubblewrap cannot."""
    ways = ["namespaces"]
    if shutil.which("bwrap") is not None:
        ways.insert(1 if os.geteuid() == 0 else 0, "bwrap")
    return [*ways, "landlock"]


@lru_cache(1)
def _first_that_holds() -> tuple[str | None, str]:
    if sys.platform != "linux":
        return None, f"this is {sys.platform}"
    try:
        compiled_filter()
    except OSError as error:
        return None, str(error)
    failures = []
    for way in possible_ways():
        failure = what_fails(way)
        if failure is None:
            return way, ""
        failures.append(f"{way}: {failure}")
    return None, "; ".join(failures)


def what_fails(way: str) -> str | None:
    """None if a program that tries to get out in this way of isolation could not."""
    with tempfile.TemporaryDirectory(prefix="groupwise-") as folder:
        secret, program = Path(folder, "secret"), Path(folder, "program", "main.py")
        secret.touch()
        program.parent.mkdir()
        program.write_text(_TRIAL)
        try:
            ended = subprocess.run(
                command(way, program, _TRIAL_SECONDS, 512),
                input=f"{secret}\n{os.getpid()}\n".encode(),
                capture_output=True,
                cwd=program.parent,
                env={},
                start_new_session=True,
                timeout=_TRIAL_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if ended.stderr.endswith(READY) and ended.returncode == 0 and ended.stdout == b"252\n":
        return None
    if ended.stderr.endswith(READY):
        return f"{ended.stdout.decode(errors='replace')!r}, exit code {ended.returncode}"
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {ended.returncode}"
