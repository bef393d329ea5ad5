"""Metrics in buckets: nothing lost, spikes kept, the same for every run."""

import json
import pathlib
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.view import jsonl_tail
from groupwise.view.jsonl_tail import JsonLinesTail, position
from groupwise.view.metric_log import MOST_POINTS, MetricLog
from viewer_runs import row


def log_of(folder: pathlib.Path, values: dict[int, float]) -> MetricLog:
    path = folder / "metrics.jsonl"
    path.write_text("".join(row(step, reward=value) for step, value in values.items()))
    return MetricLog(path)


def test_a_spike_is_never_averaged_away(tmp_path: pathlib.Path) -> None:
    values = dict.fromkeys(range(1, 1001), 1.0) | {357: 90.0}
    window = log_of(tmp_path, values).window(1, None, 100)
    reward = window["series"]["reward"]
    assert window["grids"][reward["grid"]] == list(range(100, 1001, 100))
    assert reward["high"] == [1, 1, 1, 90, 1, 1, 1, 1, 1, 1] and reward["low"] == [1] * 10
    assert reward["mean"][3] == pytest.approx(1.89) and reward["mean"][4] == 1


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(st.integers(1, 400), st.floats(-1e6, 1e6), min_size=1),
    st.integers(1, 50),
    st.integers(1, 400),
    st.integers(1, 400),
)
def test_buckets_cover_every_step_of_a_window_once(
    values: dict[int, float], width: int, start: int, stop: int
) -> None:
    ordered = dict(sorted(values.items()))
    with tempfile.TemporaryDirectory() as folder:
        window = log_of(pathlib.Path(folder), ordered).window(start, stop, width)
    inside = {step: value for step, value in ordered.items() if start <= step <= stop}
    reward = window["series"]["reward"]
    ends = window["grids"][reward["grid"]]
    assert ends == sorted({-(-step // width) * width for step in inside})
    for place, end in enumerate(ends):
        own = [value for step, value in inside.items() if end - width < step <= end]
        assert reward["mean"][place] == pytest.approx(sum(own) / len(own), rel=1e-4, abs=1e-4)
        if width > 1:
            assert reward["high"][place] == pytest.approx(max(own), rel=1e-5, abs=1e-9)


def test_too_many_points_are_asked_for_in_vain(tmp_path: pathlib.Path) -> None:
    window = log_of(tmp_path, dict.fromkeys(range(1, 3 * MOST_POINTS + 1), 0.5)).window(1, None, 1)
    assert window["width"] == 3 and len(window["series"]["reward"]["mean"]) == MOST_POINTS


def test_metrics_that_come_later_or_seldom_have_their_own_steps(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": s, "reward": 0.5} | ({"eval": s} if s % 2 == 0 else {}) for s in range(1, 6)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    window = MetricLog(path).window(1, None, 1)
    steps = {name: window["grids"][one["grid"]] for name, one in window["series"].items()}
    assert steps == {"reward": [1, 2, 3, 4, 5], "eval": [2, 4]}


def test_a_line_too_long_to_be_ours_is_skipped(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_tail, "LONGEST_LINE", 100)
    path = tmp_path / "metrics.jsonl"
    path.write_text(row(1, reward=1) + "x" * 950 + "\n" + row(2, reward=2) + "y" * 250)
    tail = JsonLinesTail(path)
    assert [line["step"] for line in tail.read().rows] == [1, 2] and tail.broken == 1
    with path.open("a") as file:
        file.write("\n" + row(3, reward=3))
    assert [line["step"] for line in tail.read().rows] == [3] and tail.broken == 2


def test_the_position_is_told_from_the_end_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert position(path).last_row == {}
    path.write_text("".join(row(step, reward=0.5) for step in range(1, 5001)) + '{"step": 5')
    assert position(path).last_row["step"] == 5000


def test_a_file_that_goes_away_and_comes_back_is_read_anew(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(row(1, reward=1))
    log = MetricLog(path)
    assert log.window(1, None, 1)["last_step"] == 1
    path.unlink()
    assert log.window(1, None, 1)["series"] == {}
    path.write_text(row(1, reward=4))
    assert log.window(1, None, 1)["series"]["reward"]["mean"] == [4]
