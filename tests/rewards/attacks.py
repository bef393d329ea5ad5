"""Programs that try to get out of the sandbox. Each reads what it needs from standard input.

What they print is what they got hold of; what they break is looked at from outside.
"""

NATIVE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
lib = ctypes.CDLL("libseccomp.so.2")
def call(name, *arguments):
    number = lib.seccomp_syscall_resolve_name(name.encode())
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return libc.syscall(ctypes.c_long(number), *words)
"""

REWRITE_BY_HANDLE = (
    NATIVE
    + """
import mmap
path = input().encode()
handle = ctypes.create_string_buffer((128).to_bytes(4, "little"), 256)
mount = ctypes.c_int()
print(call("name_to_handle_at", -100, path, handle, ctypes.byref(mount), 0))
where = os.open("/", os.O_RDONLY)
file = call("open_by_handle_at", where, handle, os.O_RDWR)
if file >= 0:
    mmap.mmap(file, 6)[:6] = b"broken"
"""
)

MOUNT = (
    NATIVE
    + """
context = call("fsopen", b"tmpfs", 0)
print(context, call("fsmount", max(context, 0), 0, 0), call("open_tree", -100, b"/", 1))
print(call("mount", b"x", os.getcwd().encode(), b"tmpfs", 0, 0), call("umount2", b"/", 2))
print(call("unshare", 0x10000000), call("setns", 0, 0), call("chroot", b"/"))
"""
)

SET_FLAGS = (
    NATIVE
    + """
file = os.open(__file__, os.O_RDONLY)
print(call("ioctl", file, 0x40086602, ctypes.byref(ctypes.c_long(0x10))))
"""
)

QUEUE_SIGNAL = (
    NATIVE
    + """
victim = int(input())
for offset in range(-2, 3):
    info = (ctypes.c_int * 32)(9, 0, -1)
    call("rt_sigqueueinfo", victim, 9, info)
    call("rt_tgsigqueueinfo", victim, victim, 9, info)
    call("tgkill", victim, victim, 9)
    call("tkill", victim, 9)
    call("pidfd_send_signal", call("pidfd_open", victim, 0), 9, 0, 0)
print(call("kill", victim, 9))
"""
)

SIGNAL_BY_OWNER = (
    NATIVE
    + """
victim = int(input())
F_SETOWN, F_SETSIG, F_SETFL, F_SETOWN_EX = 8, 10, 4, 15
reader, writer = os.pipe()
results = [
    libc.fcntl(reader, F_SETOWN, victim),
    libc.fcntl(reader, F_SETOWN_EX, (ctypes.c_int * 2)(1, victim)),
    libc.fcntl(reader, F_SETSIG, 9),
    libc.fcntl(reader, F_SETFL, os.O_ASYNC),
]
os.write(writer, b"x")
print(*results)
"""
)

SHARED_MEMORY = (
    NATIVE
    + """
key = int(input())
print(call("shmget", key, 4096, 0o1666), call("semget", key, 1, 0o1666))
print(call("msgget", key, 0o1666), call("memfd_create", b"x", 0))
print(call("mq_open", b"groupwise", os.O_CREAT | os.O_RDWR, 0o666, 0))
print(call("add_key", b"user", b"groupwise", b"x", 1, -4))
"""
)

ENVIRONMENT = """
for process in [input(), "self", *map(str, range(1, 100))]:
    for name in ("environ", "cmdline", "maps", "mem", "status"):
        try:
            print(open(f"/proc/{process}/{name}", "rb").read(100_000))
        except (OSError, ValueError):
            pass
"""

OTHER_PROGRAMS = """
import glob, os
folder = input()
paths = glob.glob(f"{folder}/**", recursive=True)
try:
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
except OSError:
    processes = range(1, 200)
paths += [f"/proc/{p}/{name}" for p in processes for name in ("cwd/main.py", "root" + folder)]
for path in paths:
    try:
        print(open(path).read())
    except OSError:
        pass
"""

EXPECTED_ANSWER = """
import os, re
process = str(os.getppid())
while process != "0":
    try:
        line = open(f"/proc/{process}/cmdline").read()
        process = open(f"/proc/{process}/stat").read().rpartition(")")[2].split()[1]
    except OSError:
        break
    found = re.search(r"expected=(\\d+)", line)
    if found:
        print(found[1])
        break
"""

SHELL = """
import _posixsubprocess, os
target = input()
reader, writer = os.pipe()
command = [b"sh", b"-c", f"echo out > {target}".encode()]
_posixsubprocess.fork_exec(command, [b"/bin/sh"], True, (), None, None, -1, -1, -1, -1, -1, -1,
    reader, writer, False, False, -1, None, None, None, -1, None, True)
"""

WRITE = """
import os, shutil
target = input()
for act in (
    lambda: open(target, "w").write("out"),
    lambda: os.write(os.open(target, os.O_WRONLY | os.O_CREAT), b"out"),
    lambda: os.truncate(target, 0),
    lambda: os.unlink(target),
    lambda: os.rename(target, target + "2"),
    lambda: os.chmod(target, 0),
    lambda: os.utime(target, (0, 0)),
    lambda: os.link(target, target + "2"),
    lambda: os.symlink(target, target + "2"),
    lambda: os.mkdir(target + "2"),
    lambda: os.setxattr(target, "user.x", b"x"),
    lambda: print(open(target).read()),
):
    try:
        act()
        print("done")
    except OSError:
        pass
"""

NETWORK = """
import socket
port, name = input().split()
for family, address in ((socket.AF_INET, ("127.0.0.1", int(port))), (socket.AF_UNIX, "\\0" + name)):
    try:
        socket.socket(family).connect(address)
        print("connected")
    except OSError:
        pass
"""

EVERY_OTHER_CALL = (
    NATIVE
    + """
import errno
allowed = {lib.seccomp_syscall_resolve_name(name.encode()) for name in input().split()}
# The kernel lets uretprobe and uprobe past every filter and ends whoever calls them by hand.
probes = {335, 336} if os.uname().machine == "x86_64" else set()
for number in range(470):
    if number in allowed | probes:
        continue
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
    if result != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        print(number, result, errno.errorcode.get(ctypes.get_errno()))
print(call("ioctl", 1, 0x5412, b"x"), call("fcntl", 1, 8, 1), call("prlimit64", 1, 0, 0, 0))
print(call("clone", 17, 0, 0, 0, 0), call("clone", 0x8000000, 0, 0, 0, 0))
"""
)

MANY_THREADS = """
import threading, time
threading.stack_size(262144)
count = 0
try:
    for count in range(1000):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    pass
print(count)
"""
