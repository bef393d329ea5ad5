"""Programs in answers: run under limits, judged by what they print, harmless to the machine."""

import asyncio
import os
import time
from pathlib import Path
from typing import Literal

import pytest

from groupwise.rewards import code
from groupwise.rewards.base import Reward
from groupwise.rewards.code import Ran, program_of, run_python
from groupwise.rewards.scorer import Scorer
from groupwise.types import Problem


def run(program: str, **limits: float) -> Ran:
    return asyncio.run(run_python(program, **limits))  # type: ignore[arg-type]


def fenced(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\nDone."


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("```print(1)```", "print(1)"),
        ("```python\nprint(1)\n``` then ```py\nprint(2)\n```", "print(2)\n"),
        ("```python\nprint(1)\n``` then ```py\nprint(2)", "print(1)\n"),
        ("<answer>print(1)</answer>", "print(1)"),
        ("<answer>```python\nprint(1)\n```</answer>", "print(1)\n"),
        ("print(1)", None),
        ("```python\n\n```", None),
        ("", None),
        ("```" * 1001, None),
        (f"```python\n{'#' * 200_000}\n```", None),
    ],
)
def test_the_last_closed_block_is_the_program(text: str, program: str | None) -> None:
    assert program_of(text) == program


def test_what_a_program_prints_is_compared() -> None:
    async def scores() -> list[float]:
        return [
            await code.code_output(fenced("print(6 * 7)"), "42"),
            await code.code_output(fenced("print('42  \\n')"), "42"),
            await code.code_output(fenced("print(int(input()) * 2)"), "42", stdin="21\n"),
            await code.code_output(fenced("print(43)"), "42"),
            await code.code_output(fenced("print(42); raise SystemExit(1)"), "42"),
            await code.code_output(fenced("print("), "42"),
            await code.code_output("42", "42"),
        ]

    assert asyncio.run(scores()) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def test_tests_give_their_share() -> None:
    tests = [{"input": "1 2", "output": "3"}, {"input": "2 2", "output": "4"}, {"output": "0"}]
    program = "print(sum(map(int, input().split())))"
    assert asyncio.run(code.code_tests(fenced(program), tests)) == pytest.approx(2 / 3)
    assert asyncio.run(code.code_tests(fenced(program), [])) == 0.0


@pytest.mark.parametrize(
    "program",
    [
        "import socket; socket.socket()",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:1')",
        "open('written', 'w')",
        "import os; os.unlink(__file__)",
        "import os; os.mkdir('made')",
        "import subprocess; subprocess.run(['true'], check=True)",
        "import os; os.fork()",
        "import os; os.execv('/bin/true', ['true'])",
        "import os; os.kill(os.getppid(), 0)",
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
        "x = bytearray(2 * 10**9)",
        "raise ValueError",
    ],
)
def test_what_is_not_allowed_fails(program: str) -> None:
    ran = run(f"{program}\nprint('got through')")
    assert ran.exit_code != 0 and ran.output == ""


def test_the_kernel_refuses_native_code_too() -> None:
    probe = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.socket(2, 1, 0), libc.unlink(b'x'), libc.kill(1, 0), libc.fork())"
    )
    assert run(probe) == Ran(0, "-1 -1 -1 -1\n")


@pytest.mark.parametrize("program", ["while True: pass", "import time; time.sleep(60)"])
def test_time_is_limited(program: str) -> None:
    start = time.monotonic()
    assert run(program, seconds=0.5) == Ran(None, "")
    assert time.monotonic() - start < 5


def test_output_is_limited() -> None:
    ran = run("while True: print('x' * 1000)")
    assert ran.exit_code is None and len(ran.output) == code.MAX_OUTPUT


def test_the_environment_is_not_handed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert "secret" not in run("import os; print(dict(os.environ))").output


def test_threads_and_text_of_any_kind_work() -> None:
    threads = "import threading as t; a = t.Thread(target=print, args=('π',)); a.start(); a.join()"
    assert run(threads) == Ran(0, "π\n")
    assert run("print('\ud800')") == Ran(0, "?\n")  # half a surrogate pair, which is no character


def test_a_program_that_runs_out_of_time_is_not_run_again() -> None:
    tests = [{"input": "1", "output": "1"}, *[{"input": "loop", "output": "2"}] * 11]
    program = "x = input()\nwhile x == 'loop': pass\nprint(x)"
    start = time.monotonic()
    assert asyncio.run(code.code_tests(fenced(program), tests, seconds=1.0)) == 1 / 12
    assert time.monotonic() - start < 8


@pytest.mark.parametrize("on_error", ["stop", pytest.param("skip", marks=pytest.mark.slow)])
def test_answers_that_loop_or_take_long_in_many_tests_do_not_end_the_run(
    on_error: Literal["stop", "skip"],
) -> None:
    tests = [{"input": str(number), "output": str(2 * number)} for number in range(12)]
    problem = Problem("p", "Double it.", {"tests": tests})
    right, slow = "print(2 * int(input()))", "import time; time.sleep(0.1); print(2 * int(input()))"
    texts = [fenced(program) for program in (*["while True: pass"] * 2, right, slow)]
    reward = Reward("tests", "groupwise.rewards.code:code_tests", options={"seconds": 1.5})
    with Scorer([reward], timeout=1.0, on_error=on_error) as scorer:
        assert scorer.score([problem] * 4, texts) == {"tests": [0.0, 0.0, 1.0, 1.0]}
        assert scorer.errors == 0


def test_programs_run_through_the_scorer_and_leave_nothing_behind(tmp_path: Path) -> None:
    problem = Problem("p", "Print 42.", {"answer": "42"})
    texts = [fenced(f"print({number})") for number in (41, 42, 42)] + ["no program"]
    with Scorer([Reward("code", "groupwise.rewards.code:code_output")], 20.0, "stop") as scorer:
        assert scorer.score([problem] * 4, texts) == {"code": [0.0, 1.0, 1.0, 0.0]}
    assert os.listdir(tmp_path) == []
