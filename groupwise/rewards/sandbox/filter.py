"""The system calls that a program may make; the kernel refuses all others with EPERM.

libseccomp turns the names into a filter for this machine and knows the numbers. It is called
directly: the Python wrappers of it either need a compiler or are one more package around the same
six functions. The list has what the Python interpreter, its standard library and numpy need to
compute and to read. None of it writes a file, starts, signals or looks into a process, opens a
socket, or leaves anything behind that outlives the program.
"""

import ctypes
import errno
import os
import tempfile
from collections.abc import Sequence
from functools import lru_cache

ALLOWED = (
    # memory
    *("brk", "madvise", "membarrier", "mmap", "mprotect", "mremap", "munmap"),
    # open files; files are opened by the rules below
    *("close", "close_range", "dup", "dup2", "dup3", "fstat", "getdents64", "lseek", "pipe"),
    *("pipe2", "pread64", "preadv", "read", "readv", "write", "writev", "fadvise64"),
    # metadata and the working folder
    *("access", "chdir", "faccessat", "faccessat2", "fchdir", "fstatfs", "getcwd", "lstat"),
    *("newfstatat", "stat", "statfs", "statx"),
    # waiting
    *("epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_wait", "eventfd2"),
    *("poll", "ppoll", "pselect6", "select"),
    # time
    *("alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "getitimer", "gettimeofday"),
    *("nanosleep", "pause", "setitimer", "time"),
    # threads and signals of its own
    *("arch_prctl", "exit", "exit_group", "futex", "restart_syscall", "rseq", "rt_sigaction"),
    *("rt_sigpending", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "sched_yield"),
    *("set_robust_list", "set_tid_address", "sigaltstack"),
    # questions about itself and the machine
    *("getcpu", "getegid", "geteuid", "getgid", "getgroups", "getpid", "getppid", "getrandom"),
    *("getresgid", "getresuid", "getrlimit", "getrusage", "gettid", "getuid", "sched_getaffinity"),
    *("sched_getparam", "sched_getscheduler", "sysinfo", "times", "umask", "uname"),
)

_EQUAL, _MASKED_EQUAL = 4, 7
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_THREAD = 0x00010000
# CLONE_PARENT, CLONE_UNTRACED and every CLONE_NEW... beside CLONE_THREAD itself.
_CLONE = 0x00008000 | 0x00800000 | 0x7E020080 | _THREAD

ALLOWED_IF: tuple[tuple[str, tuple[tuple[int, int, int, int], ...]], ...] = (
    # (argument, comparison, value or mask, value under the mask)
    ("open", ((1, _MASKED_EQUAL, _WRITING, 0),)),
    ("openat", ((2, _MASKED_EQUAL, _WRITING, 0),)),
    ("clone", ((0, _MASKED_EQUAL, _CLONE, _THREAD),)),
    ("prlimit64", ((0, _EQUAL, 0, 0), (2, _EQUAL, 0, 0))),  # reads its own limits, sets none
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC; not F_SETOWN, which sends signals
    *(("fcntl", ((1, _EQUAL, command, 0),)) for command in (0, 1, 2, 3, 1030)),
    # TCGETS (is it a terminal?), TIOCGWINSZ, FIONCLEX, FIOCLEX; nothing of a file system's
    *(("ioctl", ((1, _EQUAL, request, 0),)) for request in (0x5401, 0x5413, 0x5450, 0x5451)),
)

_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_BAD_ARCHITECTURE = 2


class _Comparison(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


@lru_cache(1)
def compiled_filter() -> bytes:
    """The filter as instructions for the kernel. Raises OSError without libseccomp."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(_ERRNO | errno.EPERM))
    try:
        # Calls of another architecture's numbering, as 32-bit ones on a 64-bit machine.
        _check(library.seccomp_attr_set(context, _BAD_ARCHITECTURE, ctypes.c_uint32(_KILL_PROCESS)))
        for name in ALLOWED:
            _add(library, context, _ALLOW, name)
        for name, conditions in ALLOWED_IF:
            _add(library, context, _ALLOW, name, conditions)
        # "Absent" lets the C library fall back to clone, whose arguments a filter can read.
        _add(library, context, _ERRNO | errno.ENOSYS, "clone3")
        with tempfile.TemporaryFile() as file:
            _check(library.seccomp_export_bpf(context, file.fileno()))
            file.seek(0)
            return file.read()
    finally:
        library.seccomp_release(context)


def _add(
    library: ctypes.CDLL,
    context: ctypes.c_void_p,
    action: int,
    name: str,
    conditions: Sequence[tuple[int, int, int, int]] = (),
) -> None:
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number == -1:  # newer than the library: then it stays refused
        return
    rules = (_Comparison * len(conditions))(*(_Comparison(*line) for line in conditions))
    _check(
        library.seccomp_rule_add_array(
            context, ctypes.c_uint32(action), number, len(conditions), rules
        )
    )


def _check(code: int) -> None:
    if code < 0:
        raise OSError(-code, f"libseccomp: {os.strerror(-code)}")
