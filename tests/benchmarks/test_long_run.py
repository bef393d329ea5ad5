"""The benchmark of long runs says what a run held early and late."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent.parent / "benchmarks"))

from long_run import Watch, compared


def test_the_second_tenth_is_compared_with_the_last() -> None:
    watch = Watch()
    watch.seconds = [0.5] * 50 + [1.0] * 50
    for step in range(2, 101, 2):
        watch.lines.append({"step": step, "resident_mb": 100.0 + step, "files": 7.0})
    rows = compared(watch, 100)
    assert rows["milliseconds"] == [500.0, 1000.0]
    assert rows["files"] == [7.0, 7.0]
    assert rows["resident_mb"] == [116.0, 196.0]
