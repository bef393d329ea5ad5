"""The sandbox against programs that try to leave it, in every way that this machine isolates.

As root, every attack is tried a second time as an unprivileged user.
"""

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

import attacks
from groupwise.check.doctor import code_sandbox
from groupwise.errors import RewardError
from groupwise.recipe import parse
from groupwise.rewards import code
from groupwise.rewards.base import Reward
from groupwise.rewards.sandbox import filter as system_calls
from groupwise.rewards.sandbox import run as sandbox_run
from groupwise.rewards.sandbox import ways
from groupwise.rewards.scorer import Scorer

NOBODY = 65534
PACKAGE = Path(code.__file__).parent.parent
RUN = (
    "import asyncio, sys; from groupwise.rewards import code\n"
    "code.check_isolation = lambda: sys.argv[1]\n"
    "text = sys.stdin.read()\n"
    "ran = asyncio.run(code.run_python(sys.argv[2], text, float(sys.argv[3])))\n"
    "print(ran.exit_code); sys.stdout.write(ran.output)\n"
)


@pytest.fixture(scope="module")
def public() -> Iterator[Path]:
    """A folder that every user can read, with the package in it."""
    folder = Path(tempfile.mkdtemp(prefix="sandbox-test-"))
    for name in ("rewards", "answers"):
        shutil.copytree(PACKAGE / name, folder / "groupwise" / name)
    for name in ("__init__.py", "errors.py"):
        shutil.copy(PACKAGE / name, folder / "groupwise" / name)
    (folder / "tmp").mkdir()
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755)
    (folder / "tmp").chmod(0o777)
    yield folder
    shutil.rmtree(folder)


class Attacker:
    """Runs programs in one way of isolation, from a process of one user."""

    def __init__(self, way: str, user: int, public: Path) -> None:
        self.way, self.user, self.public = way, user, public
        self.python = sys.executable if user == os.geteuid() else _python_for(user)

    def start_alone(self, program: str) -> subprocess.Popen[str]:
        """A program that gets no input and goes on for long."""
        process = self.start(program, 60.0)
        assert process.stdin is not None
        process.stdin.close()
        return process

    def start(self, program: str, seconds: float = 20.0) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, "-c", RUN, self.way, program, str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            user=self.user if self.user != os.geteuid() else None,
            env={
                "PYTHONPATH": str(self.public),
                "TMPDIR": str(self.public / "tmp"),
                "PATH": os.environ["PATH"],  # where bwrap is looked for
                "API_KEY": "key-of-the-parent",
            },
        )

    def run(self, program: str, stdin: str = "", seconds: float = 20.0) -> tuple[str, str]:
        """The exit code and the output."""
        process = self.start(program, seconds)
        text, _ = process.communicate(stdin, timeout=60)
        assert process.returncode == 0
        exit_code, _, output = text.partition("\n")
        return exit_code, output

    def victim(self) -> subprocess.Popen[bytes]:
        user = self.user if self.user != os.geteuid() else None
        return subprocess.Popen(
            ["sleep", "60"], user=user, env={"API_KEY": "key-of-a-process", "PATH": "/bin:/usr/bin"}
        )


def _python_for(user: int) -> str:
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        check = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if subprocess.run(check, user=user, env={}, cwd="/").returncode == 0:
                return path
        except OSError:
            continue
    pytest.skip("no Python 3.11 that an unprivileged user can start")


@pytest.fixture(
    params=[
        (way, user) for way in ("namespaces", "bwrap", "landlock") for user in ("self", "nobody")
    ],
    ids="-".join,
)
def attacker(request: pytest.FixtureRequest, public: Path) -> Attacker:
    way, user = request.param
    if way == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if user == "nobody" and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    return Attacker(way, os.geteuid() if user == "self" else NOBODY, public)


@pytest.fixture
def outside(attacker: Attacker) -> Iterator[Path]:
    """A file that belongs to whoever runs the programs."""
    file = attacker.public / "tmp" / "outside"
    file.write_text("intact")
    os.chown(file, attacker.user, -1)
    yield file
    file.unlink()


def test_a_file_is_not_rewritten_through_its_handle(attacker: Attacker, outside: Path) -> None:
    attacker.run(attacks.REWRITE_BY_HANDLE, f"{outside}\n")
    assert outside.read_text() == "intact"


def test_files_outside_are_not_written_read_or_changed(attacker: Attacker, outside: Path) -> None:
    before = outside.stat()
    assert attacker.run(attacks.WRITE, f"{outside}\n") == ("0", "")
    after = outside.stat()
    assert outside.read_text() == "intact"
    assert (before.st_mode, before.st_mtime) == (after.st_mode, after.st_mtime)
    assert not list(outside.parent.glob("outside2*"))


def test_nothing_is_mounted_and_no_namespace_is_entered(attacker: Attacker) -> None:
    assert attacker.run(attacks.MOUNT) == ("0", "-1 -1 -1\n-1 -1\n-1 -1 -1\n")


def test_flags_of_a_file_are_not_set(attacker: Attacker) -> None:
    assert attacker.run(attacks.SET_FLAGS) == ("0", "-1\n")


@pytest.mark.parametrize("attack", [attacks.QUEUE_SIGNAL, attacks.SIGNAL_BY_OWNER])
def test_no_process_outside_gets_a_signal(attacker: Attacker, attack: str) -> None:
    victim = attacker.victim()
    try:
        exit_code, output = attacker.run(attack, f"{victim.pid}\n")
        assert exit_code == "0" and set(output.split()) == {"-1"}
        time.sleep(0.2)
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_no_shared_memory_outlives_the_program(attacker: Attacker) -> None:
    key = 0x47500000 + os.getpid()
    assert attacker.run(attacks.SHARED_MEMORY, f"{key}\n") == ("0", "-1 -1\n" * 2 + "-1\n" * 2)
    assert ctypes.CDLL(None).shmget(key, 4096, 0o600) == -1


def test_environments_and_command_lines_of_processes_are_not_seen(attacker: Attacker) -> None:
    victim = attacker.victim()
    try:
        exit_code, output = attacker.run(attacks.ENVIRONMENT, f"{victim.pid}\n")
        assert (exit_code, output) == ("0", "")
    finally:
        victim.kill()
        victim.wait()


def test_another_answers_program_is_not_seen(attacker: Attacker) -> None:
    other = attacker.start_alone("import time\nprint('mine alone', flush=True)\ntime.sleep(60)")
    folder = attacker.public / "tmp"
    try:
        _wait_for(lambda: any(folder.glob("groupwise-*/main.py")))
        exit_code, output = attacker.run(attacks.OTHER_PROGRAMS, f"{folder}\n")
        assert exit_code == "0" and "mine alone" not in output
    finally:
        other.kill()
        other.wait()
        _wait_for(lambda: not _processes(str(folder)))
        shutil.rmtree(next(folder.glob("groupwise-*")))


def test_a_shell_is_not_started(attacker: Attacker, outside: Path) -> None:
    attacker.run(attacks.SHELL, f"{outside}\n")
    assert outside.read_text() == "intact"


def test_nothing_is_connected_to(attacker: Attacker) -> None:
    name = f"groupwise-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind("\0" + name)
        local.listen()
        stdin = f"{server.getsockname()[1]} {name}\n"
        assert attacker.run(attacks.NETWORK, stdin) == ("0", "")


def test_every_system_call_that_is_not_listed_is_refused(attacker: Attacker) -> None:
    names = {*system_calls.ALLOWED, *(name for name, _ in system_calls.ALLOWED_IF)}
    exit_code, output = attacker.run(attacks.EVERY_OTHER_CALL, f"{' '.join(names)}\n")
    assert (exit_code, output) == ("0", "-1 -1 -1\n-1 -1\n")


def test_the_number_of_threads_is_limited(attacker: Attacker) -> None:
    if attacker.way == "landlock" or (attacker.way, attacker.user) == ("bwrap", 0):
        pytest.skip("the threads of all programs would be counted together")
    _, output = attacker.run(attacks.MANY_THREADS, seconds=20.0)
    assert 10 < int(output) < 70


def test_root_is_another_user_inside(public: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    program = "import os; print(os.getuid(), os.getgid(), os.getgroups())"
    _, output = Attacker("namespaces", 0, public).run(program)
    user, group, groups = output.split()
    assert int(user) == int(group) >= 2**30 and groups == "[]"


def test_a_program_ends_with_the_process_that_runs_it(attacker: Attacker) -> None:
    process = attacker.start_alone("import time; time.sleep(60)")
    folder = str(attacker.public / "tmp")
    try:
        _wait_for(lambda: len(_processes(folder)) >= 2)
    finally:
        process.kill()
        process.wait()
    _wait_for(lambda: not _processes(folder))
    shutil.rmtree(next(Path(folder).glob("groupwise-*")))


ORDINARY = """
import bisect, collections, dataclasses, datetime, decimal, fractions, functools, hashlib, heapq
import io, itertools, json, math, os, random, re, statistics, string, sys, threading, time, typing
import zoneinfo
sys.setrecursionlimit(10_000)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
@dataclasses.dataclass
class Point:
    x: int
a, b = map(int, input().split())
print(a + b, depth(3000), Point(1), json.dumps({"x": [1]}), re.findall(r"\\d", "a1b2"))
print(collections.Counter("aab").most_common(1), list(itertools.permutations([1, 2])))
print(fractions.Fraction(1, 3), decimal.Decimal("0.1") * 3, math.isqrt(99), max(heapq.merge([1])))
print(hashlib.sha256(b"x").hexdigest()[:4], len(os.urandom(4)), len(open(__file__).read()) > 100)
print(datetime.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")).year, time.time() > 0)
print(sys.stdin.read().split(), os.listdir(".") == ["main.py"], __name__, os.cpu_count() > 0)
time.sleep(0.01)
"""


def test_ordinary_programs_work(attacker: Attacker) -> None:
    exit_code, output = attacker.run(ORDINARY, "3 4\nmore text\n")
    assert exit_code == "0", output
    assert output.splitlines() == [
        "7 3000 Point(x=1) {\"x\": [1]} ['1', '2']",
        "[('a', 2)] [(1, 2), (2, 1)]",
        "1/3 0.3 9 1",
        "2d71 4 True",
        "2024 True",
        "['more', 'text'] True __main__ True",
    ]


@pytest.mark.parametrize("way", ["namespaces", "landlock"])
def test_numpy_works(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "check_isolation", lambda: way)
    program = "import numpy; print(int((numpy.ones((50, 50)) @ numpy.ones((50, 50))).sum()))"
    ran = asyncio.run(code.run_python(program, seconds=30.0, memory_mb=2048))
    assert ran == code.Ran(0, "125000\n")


def test_expected_answers_on_an_ancestors_command_line_are_not_found() -> None:
    script = (
        "import asyncio, sys; from groupwise.rewards.code import code_output\n"
        "answer = sys.argv[2].partition('=')[2]\n"
        "print(asyncio.run(code_output(sys.argv[1], answer)))"
    )
    completion = f"```python\n{attacks.EXPECTED_ANSWER}\n```"
    command = [sys.executable, "-c", script, completion, "expected=73529"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "0.0\n"


def test_this_machine_isolates_and_says_how() -> None:
    assert ways.check_isolation() in ways.possible_ways()


@pytest.fixture
def untried() -> Iterator[None]:
    ways._first_that_holds.cache_clear()
    yield
    ways._first_that_holds.cache_clear()


@pytest.mark.usefixtures("untried")
def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RewardError, match=r"cannot isolate.*darwin.*fix: .*Linux"):
        asyncio.run(code.run_python("print(1)"))


@pytest.mark.usefixtures("untried")
def test_without_libseccomp_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> bytes:
        raise OSError("libseccomp.so.2: cannot open shared object file")

    monkeypatch.setattr(ways, "compiled_filter", absent)
    with pytest.raises(RewardError, match=r"libseccomp.*apt install libseccomp2"):
        asyncio.run(code.run_python("print(1)"))


@pytest.mark.usefixtures("untried")
def test_a_sandbox_that_lets_something_through_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that allows everything stands for a kernel that does not keep it."""
    monkeypatch.setattr(sandbox_run, "compiled_filter", lambda: bytes.fromhex("060000000000ff7f"))
    with pytest.raises(RewardError, match="a program could"):
        asyncio.run(code.run_python("print(1)"))


@pytest.mark.usefixtures("untried")
def test_where_the_kernel_has_no_way_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "possible_ways", lambda: ["namespaces", "landlock"])
    monkeypatch.setattr(ways, "command", lambda *_: ["/bin/sh", "-c", "echo no unshare >&2; false"])
    with pytest.raises(RewardError, match="namespaces: no unshare; landlock: no unshare"):
        ways.check_isolation()


@pytest.mark.usefixtures("untried")
def test_the_doctor_says_how_programs_are_isolated_or_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, needing = parse({}), parse({"rewards": ["code_tests"]})
    assert code_sandbox(needing).status == "ok"
    ways._first_that_holds.cache_clear()
    monkeypatch.setattr(ways, "possible_ways", lambda: [])
    assert code_sandbox(plain).status == "note"
    line = code_sandbox(needing)
    assert line.status == "fix" and "cannot isolate" in line.text and "libseccomp2" in line.fix


def test_a_sandbox_that_breaks_later_is_an_error_and_not_a_score(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code, "check_isolation", lambda: "landlock")
    monkeypatch.setattr(sandbox_run, "command", lambda *_: ["/bin/sh", "-c", "echo full >&2"])
    with pytest.raises(RewardError, match="could not start a program: full"):
        asyncio.run(code.run_python("print(1)"))


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_a_reward_that_cannot_work_here_is_refused_before_the_first_answer(
    on_error: Literal["stop", "skip"],
) -> None:
    reward = Reward("code", "some_rewards:not_on_this_machine")
    with pytest.raises(RewardError, match="this machine lacks something"):
        Scorer([reward], 5.0, on_error)


def test_a_program_cannot_pretend_that_the_sandbox_failed() -> None:
    program = "import os, sys; sys.stderr.write('broken'); sys.stderr.flush(); os._exit(125)"
    assert asyncio.run(code.run_python(program)) == code.Ran(125, "")


def test_files_and_threads_of_the_caller_do_not_matter(tmp_path: Path) -> None:
    """Descriptors that the caller has open are not there inside."""
    secret = tmp_path / "secret"
    secret.write_text("open in the caller")
    program = (
        "import os\n"
        "for number in range(3, 64):\n"
        "    try: print(os.pread(number, 100, 0))\n"
        "    except OSError: pass\n"
    )
    with open(secret) as file:
        os.set_inheritable(file.fileno(), True)
        thread = threading.Thread(target=time.sleep, args=(0.5,))
        thread.start()
        assert asyncio.run(code.run_python(program)) == code.Ran(0, "")
        thread.join()


def _processes(text: str) -> list[str]:
    """Processes with this text in their command line, as programs have their folder."""
    matching = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"{text}/groupwise-".encode() in path.read_bytes():
                matching.append(path.parent.name)
        except OSError:
            continue
    return matching


def _wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
