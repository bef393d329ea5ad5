"""Rewards for programs: the Python code in an answer is run, and what it prints is compared.

Every program runs in a process of its own that it cannot leave: groupwise.rewards.sandbox says how.
It gets its input and nothing else; what it should print is compared here. A program that fails,
hangs or floods scores 0: it never fails the reward. A machine that cannot isolate programs does.

The functions are asynchronous, so the answers of a batch run side by side, one to each core.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from groupwise.answers.tags import tag_content
from groupwise.rewards.base import with_own_limits
from groupwise.rewards.sandbox.run import Ran, run_isolated
from groupwise.rewards.sandbox.ways import check_isolation

MAX_OUTPUT = 100_000
MAX_PROGRAM = 100_000

_SLOTS: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = WeakKeyDictionary()


def _longest(
    tests: Sequence[Mapping[str, Any]] = ({},), seconds: float = 5.0, **_: object
) -> float:
    return len(tests) * seconds


@with_own_limits(check=check_isolation, seconds=_longest)
async def code_output(
    completion: str, answer: str, stdin: str = "", seconds: float = 5.0, memory_mb: int = 512
) -> float:
    """1.0 if the answer's program ends well and prints `answer` (a column), otherwise 0.0.

    Spaces at the end of lines and blank lines at the end of the output do not matter.
    """
    return await code_tests(completion, [{"input": stdin, "output": answer}], seconds, memory_mb)


@with_own_limits(check=check_isolation, seconds=_longest)
async def code_tests(
    completion: str,
    tests: Sequence[Mapping[str, Any]],
    seconds: float = 5.0,
    memory_mb: int = 512,
) -> float:
    """The share of `tests` (a column) that the answer's program passes, each within `seconds`.

    A test is {"input": "3 4", "output": "7"}: what the program reads and what it must print. A
    program that runs out of time in one of them is not run again: the rest count as failed.
    """
    program = program_of(completion)
    if program is None or not tests:
        return 0.0
    passed = 0
    async with _slot():  # for all tests, so that answers are finished one after the other
        for test in tests:
            ran = await _run(program, str(test.get("input", "")), seconds, memory_mb)
            if ran.exit_code is None:
                break
            passed += ran.exit_code == 0 and _lines(ran.output) == _lines(str(test["output"]))
    return passed / len(tests)


def program_of(text: str) -> str | None:
    """The last fenced block that is closed, else what the only `<answer>` pair holds, else None."""
    parts = text.split("```")
    # Of a, code, b, code, c: the last one at an odd position that another follows.
    last = (len(parts) - 1) // 2 * 2 - 1
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
    async with _slot():
        return await _run(program, stdin, seconds, memory_mb)


async def _run(program: str, stdin: str, seconds: float, memory_mb: int) -> Ran:
    way = check_isolation()
    text = stdin.encode("utf-8", "replace")
    return await run_isolated(way, program, text, seconds, memory_mb, MAX_OUTPUT)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _slot() -> asyncio.Semaphore:
    """A semaphore belongs to the event loop that it was first waited for in."""
    loop = asyncio.get_running_loop()
    if loop not in _SLOTS:
        _SLOTS[loop] = asyncio.Semaphore(os.cpu_count() or 1)
    return _SLOTS[loop]
