"""The benchmark of timings trains the same recipe three times and prints the ratios."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "asynchronous.py"


@pytest.mark.slow
def test_it_prints_a_ratio_for_each_timing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--steps", "1", "--workers", "1", "--tokens", "8"]
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), *arguments])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "in turn",
        "ahead by 1",
        "in flight, at most 4 old",
        "step ratio, in turn over ahead by 1",
        "step ratio, in turn over in flight, at most 4 old",
    ]
