"""The benchmark of turns samples plain requests and episodes, and prints a line for each kind."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_it_prints_a_line_for_each_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--device cpu --model shape:tiny --prompts 2 --group 2 --tokens 12 --repeats 1"
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["turns.py", *small.split()])
    runpy.run_path(str(BENCHMARKS / "turns.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()[1:]
    tokens = {line[:20].strip(): float(line.split()[-4]) for line in lines}
    episodes = [f"{n} turns, {thread}" for n in (1, 3) for thread in ("own", "shared", "sampling")]
    assert list(tokens) == ["plain requests", *episodes]
    assert {tokens[name] for name in episodes[:3]} == {tokens["plain requests"]}
    assert tokens["3 turns, own"] > tokens["1 turns, own"]
