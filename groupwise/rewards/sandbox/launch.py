"""Runs one program of a model: python -I -B launch.py WAY PROGRAM SECONDS BYTES FILTER FOLDERS

It shuts itself in, then becomes the program, step by step and each a limit of its own: namespaces
with a file system that holds FOLDERS alone, read-only (processes, network, shared memory and mounts
of their own too), another user, resource limits, no capabilities, Landlock, and the filter on
system calls. WAY says who makes the namespaces: `namespaces` this script; `bwrap` bubblewrap has
done it; `landlock` nobody can, so Landlock must hide the files and the filter does the rest.

It writes READY to standard error when all of that holds, or why it does not, and then closes it:
what the program does can never look like a sandbox that failed. This file imports nothing of ours
and its arguments hold nothing that a program should not know.
"""

import ctypes
import os
import resource
import runpy
import signal
import sys
from typing import Any

READY = b"ready"
FILES = 64
THREADS = 64

_NEW_MOUNTS, _NEW_UTS, _NEW_IPC = 0x20000, 0x4000000, 0x8000000
_NEW_USER, _NEW_PID, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_NAMESPACES = _NEW_MOUNTS | _NEW_UTS | _NEW_IPC | _NEW_PID | _NEW_NETWORK

_NO_SUID, _NO_DEVICES, _BIND, _MOVE, _RECURSIVE, _PRIVATE = 2, 4, 0x1000, 0x2000, 0x4000, 0x40000
_READ_ONLY = 1

# Like all since Linux 5.1, these have one number on every architecture.
_MOUNT_SETATTR, _CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 442, 444, 445, 446

_SET_DEATH_SIGNAL, _SET_SECCOMP, _DROP_BOUNDING, _NO_NEW_PRIVILEGES = 1, 22, 24, 38

_libc = ctypes.CDLL(None, use_errno=True)


def main(way: str, program: str, seconds: str, memory: str, code: str, folders: str) -> None:
    os.umask(0o022)
    _die_with_parent()
    own_user = _enter_namespaces() if way == "namespaces" else None
    child = os.fork()
    if child:
        os.close(2)
        code_of_child = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(code_of_child if code_of_child >= 0 else 128 - code_of_child)
    _die_with_parent()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    readable = folders.split(os.pathsep)
    if way == "namespaces":
        program = _change_root(program, readable)
    os.chdir(os.path.dirname(program))
    _drop_privileges(own_user)
    _die_with_parent()
    _limit_resources(int(seconds), int(memory), way != "landlock")
    _check(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")
    _restrict_files([*readable, os.path.dirname(program)], required=way == "landlock")
    _filter_system_calls(bytes.fromhex(code))
    os.write(2, READY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    sys.argv = [program]
    runpy.run_path(program, run_name="__main__")


def _enter_namespaces() -> int | None:
    """A user to become, which root can: nobody else's, made of our process's number."""
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_NAMESPACES) == 0:
        return 2**30 + os.getpid()
    _check(_libc.unshare(_NAMESPACES | _NEW_USER), "unshare")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    return None


def _change_root(program: str, readable: list[str]) -> str:
    """A file system with nothing but the program and what is readable. Returns its new path."""
    with open(program, "rb") as file:
        text = file.read()
    root = os.path.dirname(program)
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, "size=16m,mode=755")
    for path in readable:
        target = root + path
        if os.path.lexists(target):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
        elif os.path.isdir(path):
            os.mkdir(target)
            _mount(path, target, None, _BIND | _RECURSIVE)
        elif os.path.exists(path):
            _write(target, "")
            _mount(path, target, None, _BIND)
    os.mkdir(f"{root}/program")
    with open(f"{root}/program/main.py", "wb") as file:
        file.write(text)
    os.chdir(root)
    _mount(root, "/", None, _MOVE)
    os.chroot(".")
    os.chdir("/")
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY | _NO_SUID | _NO_DEVICES, 0, 0, 0)
    recursive = 0x8000
    _system_call(_MOUNT_SETATTR, -100, b"/", recursive, attributes, ctypes.sizeof(attributes))
    return "/program/main.py"


def _drop_privileges(own_user: int | None) -> None:
    """Without capabilities root is an ordinary user; one that no file or process belongs to where
    that can be had, so that the limit on threads holds as well."""
    for capability in range(64):
        _libc.prctl(_DROP_BOUNDING, capability, 0, 0, 0)
    if own_user is not None:
        try:
            os.setgroups([])
            os.setresgid(own_user, own_user, own_user)
            os.setresuid(own_user, own_user, own_user)
        except OSError:  # a container that has few users
            pass
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _die_with_parent() -> None:
    """Be killed when the parent ends. Changing the user undoes this, so it is asked for again."""
    _check(_libc.prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0), "prctl")


def _limit_resources(seconds: int, memory: int, own_count: bool) -> None:
    limits = {"CPU": seconds, "AS": memory, "FSIZE": 0, "CORE": 0, "NOFILE": FILES, "MSGQUEUE": 0}
    if own_count:  # elsewhere all that the user runs would count
        limits["NPROC"] = THREADS
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))


def _restrict_files(readable: list[str], required: bool) -> None:
    """Landlock: of all files, these may be read, and nothing else done. No TCP, no signals out."""
    version = _libc.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        if required:
            raise OSError("Landlock is not to be had")
        return
    read_file, read_folder = 1 << 2, 1 << 3
    every_right = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    network, scopes = 3 if version >= 4 else 0, 3 if version >= 6 else 0
    size = 8 if version < 4 else 16 if version < 6 else 24
    rights = (ctypes.c_uint64 * 3)(every_right, network, scopes)
    rules = _system_call(_CREATE_RULESET, rights, size, 0)
    for path in readable:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = read_file | (read_folder if os.path.isdir(path) else 0)
        beneath = allowed.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        _system_call(_ADD_RULE, rules, 1, beneath, 0)
        os.close(descriptor)
    _system_call(_RESTRICT_SELF, rules, 0)
    os.close(rules)


def _filter_system_calls(code: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    header = Program(len(code) // 8, code)
    mode_filter = 2
    _check(_libc.prctl(_SET_SECCOMP, mode_filter, ctypes.byref(header), 0, 0), "seccomp")


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    texts = [None if t is None else os.fsencode(t) for t in (source, target, kind, options)]
    code = _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _check(code, f"mount {target}")


def _system_call(number: int, *arguments: Any) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *words), f"system call {number}")


def _check(code: int, what: str) -> int:
    if code < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return code


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
