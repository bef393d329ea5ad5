"""One program in one isolated process: what it reads goes in, what it prints comes out.

Nothing else of ours is given to it. What it should print stays here, where the two are compared.
"""

import asyncio
import contextlib
import math
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from groupwise.errors import RewardError
from groupwise.rewards.sandbox.filter import compiled_filter
from groupwise.rewards.sandbox.launch import READY

LAUNCHER = Path(__file__).with_name("launch.py")
START_SECONDS = 60.0
"""How long the sandbox may take to start: some 50 ms, and more on a machine that is very busy."""


@dataclass(frozen=True)
class Ran:
    """Ran(exit_code=0, output="42\\n"). The code is None if it ran out of time or into the limit
    on output."""

    exit_code: int | None
    output: str


async def run_isolated(
    way: str, program: str, stdin: bytes, seconds: float, memory_mb: int, most_output: int
) -> Ran:
    """Raises RewardError if it is the sandbox that fails, never for what a program does."""
    with tempfile.TemporaryDirectory(prefix="groupwise-") as folder:
        file = Path(folder) / "main.py"
        file.write_text(program, encoding="utf-8", errors="replace")
        process = await asyncio.create_subprocess_exec(
            *command(way, file, seconds, memory_mb),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            await _ready(process)
            return await asyncio.wait_for(_talk(process, stdin, most_output), seconds)
        except TimeoutError:
            return Ran(None, "")
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            # asyncio sees the end of a process only when its output has been read to the end.
            for pipe in (process.stdout, process.stderr):
                while pipe and await pipe.read(65536):
                    pass
            await process.wait()


def command(way: str, program: Path, seconds: float, memory_mb: int) -> list[str]:
    """The command line that isolates and then runs a program, in one of the ways of `launch`."""
    folders = readable_paths()
    python = [sys.executable, "-I", "-B", "-X", "utf8", str(LAUNCHER), way, str(program)]
    limits = [str(math.ceil(seconds)), str(memory_mb * 2**20)]
    launch = [*python, *limits, compiled_filter().hex(), os.pathsep.join(folders)]
    if way != "bwrap":
        return launch
    bind = [p for path in (*folders, str(LAUNCHER)) for p in ("--ro-bind-try", path, path)]
    return [
        *(shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent"),
        *("--cap-drop", "ALL", "--dev-bind", os.devnull, os.devnull, *bind),
        *("--ro-bind", str(program.parent), str(program.parent), "--remount-ro", "/"),
        *("--", *launch),
    ]


def readable_paths() -> list[str]:
    """What a program may read: the interpreter, its packages, shared libraries, time zones."""
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, "/usr/local", "/usr", "/"))
    folders = [os.path.join(p, part) for p in prefixes for part in ("lib", "lib64")]
    # bubblewrap starts the interpreter inside.
    folders += [os.path.join(p, "bin") for p in (sys.prefix, sys.base_prefix)]
    files = [f"{sys.prefix}/pyvenv.cfg", "/etc/ld.so.cache", "/usr/share/zoneinfo"]
    return [path for path in dict.fromkeys((*folders, *files)) if os.path.exists(path)]


async def _ready(process: asyncio.subprocess.Process) -> None:
    """A program's time limit begins when its sandbox is ready, however busy the machine is."""
    assert process.stderr
    said = b""
    try:
        async with asyncio.timeout(START_SECONDS):  # bubblewrap keeps the pipe open
            while not said.endswith(READY) and (chunk := await process.stderr.read(4096)):
                said += chunk
    except TimeoutError:
        raise RewardError(f"the sandbox did not start within {START_SECONDS:g} s") from None
    if not said.endswith(READY):
        reason = said.decode(errors="replace").strip().splitlines()[-1:] or ["it says nothing"]
        raise RewardError(f"the sandbox could not start a program: {reason[0][:300]}")


async def _talk(process: asyncio.subprocess.Process, stdin: bytes, most_output: int) -> Ran:
    assert process.stdin and process.stdout

    async def write(pipe: asyncio.StreamWriter) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            pipe.write(stdin)
            await pipe.drain()
            pipe.close()

    async def read(pipe: asyncio.StreamReader) -> bytes:
        output = b""
        while len(output) <= most_output and (chunk := await pipe.read(65536)):
            output += chunk
        return output

    _, output = await asyncio.gather(write(process.stdin), read(process.stdout))
    text = output[:most_output].decode("utf-8", "replace")
    return Ran(None if len(output) > most_output else await process.wait(), text)
