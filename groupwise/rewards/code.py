"""Rewards for programs: the Python code in an answer is run, and what it prints is compared.

Every program runs in a process of its own with limits on time, memory and output, without network
and without the right to write files or start processes; groupwise.rewards.sandbox says what is
guaranteed where. A program that fails, hangs or floods scores 0: it never fails the reward.

The functions are asynchronous, so the answers of a batch run side by side, one to each core.
"""

import asyncio
import contextlib
import math
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from groupwise.rewards.tags import tag_content

MAX_OUTPUT = 100_000
MAX_PROGRAM = 100_000

_SANDBOX = Path(__file__).with_name("sandbox.py")
_SEATS: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = WeakKeyDictionary()


@dataclass(frozen=True)
class Ran:
    """Ran(exit_code=0, output="42\\n"). The code is None if it ran out of time or into the limit
    on output; it is negative if the kernel ended it."""

    exit_code: int | None
    output: str


async def code_output(
    completion: str, answer: str, stdin: str = "", seconds: float = 5.0, memory_mb: int = 512
) -> float:
    """1.0 if the answer's program ends well and prints `answer` (a column), otherwise 0.0.

    Spaces at the end of lines and blank lines at the end of the output do not matter.
    """
    program = program_of(completion)
    if program is None:
        return 0.0
    return float(await _prints(program, stdin, str(answer), seconds, memory_mb))


async def code_tests(
    completion: str,
    tests: Sequence[Mapping[str, Any]],
    seconds: float = 5.0,
    memory_mb: int = 512,
) -> float:
    """The share of `tests` (a column) that the answer's program passes.

    A test is {"input": "3 4", "output": "7"}: what the program reads and what it must print.
    """
    program = program_of(completion)
    if program is None or not tests:
        return 0.0
    passed = [
        await _prints(program, str(t.get("input", "")), str(t["output"]), seconds, memory_mb)
        for t in tests
    ]
    return sum(passed) / len(passed)


def program_of(text: str) -> str | None:
    """The last fenced block that is closed, else what the only `<answer>` pair holds, else None."""
    parts = text.split("```")
    last = (
        len(parts) - 1
    ) // 2 * 2 - 1  # of a, code, b, code, c: the last odd one with a successor
    program = tag_content(text, "answer")
    if last > 0:
        first_line, newline, rest = parts[last].partition("\n")
        is_language = newline and first_line.strip().isalnum()
        program = rest if is_language or not first_line.strip() else parts[last]
    if program is None or not program.strip() or len(program) > MAX_PROGRAM:
        return None
    return program


async def run_python(
    program: str, stdin: str = "", seconds: float = 5.0, memory_mb: int = 512
) -> Ran:
    """Run a program under the limits. Not more of them at once than there are cores."""
    with tempfile.TemporaryDirectory(prefix="groupwise-") as folder:
        file = Path(folder) / "main.py"
        file.write_text(program, encoding="utf-8", errors="replace")
        arguments = (str(file), str(math.ceil(seconds)), str(memory_mb * 2**20))
        async with _seat():
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-B", "-X", "utf8", str(_SANDBOX), *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=folder,
                env={},  # no keys and no tokens to print
                start_new_session=True,
            )
            try:
                output = await asyncio.wait_for(_talk(process, stdin.encode()), seconds)
                code = process.returncode if len(output) <= MAX_OUTPUT else None
            except TimeoutError:
                code, output = None, b""
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                # asyncio sees the end of a process only when its output has been read to the end.
                while process.stdout and await process.stdout.read(65536):
                    pass
                await process.wait()
    return Ran(code, output[:MAX_OUTPUT].decode("utf-8", "replace"))


async def _talk(process: asyncio.subprocess.Process, stdin: bytes) -> bytes:
    assert process.stdin is not None and process.stdout is not None

    async def write(pipe: asyncio.StreamWriter) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            pipe.write(stdin)
            await pipe.drain()
            pipe.close()

    async def read(pipe: asyncio.StreamReader) -> bytes:
        output = b""
        while len(output) <= MAX_OUTPUT and (chunk := await pipe.read(65536)):
            output += chunk
        return output

    _, output = await asyncio.gather(write(process.stdin), read(process.stdout))
    if len(output) <= MAX_OUTPUT:
        await process.wait()
    return output


async def _prints(program: str, stdin: str, expected: str, seconds: float, memory_mb: int) -> bool:
    ran = await run_python(program, stdin, seconds, memory_mb)
    return ran.exit_code == 0 and _lines(ran.output) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _seat() -> asyncio.Semaphore:
    """A semaphore belongs to the event loop that it was first waited for in."""
    loop = asyncio.get_running_loop()
    if loop not in _SEATS:
        _SEATS[loop] = asyncio.Semaphore(os.cpu_count() or 1)
    return _SEATS[loop]
