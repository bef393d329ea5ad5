"""The viewer's benchmark measures a run that the viewer can really show."""

import gzip
import json
import pathlib
import sys

import pytest

from groupwise.types import group_from_json

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import viewer


def test_the_made_run_is_in_the_format_of_training(tmp_path: pathlib.Path) -> None:
    run = viewer.make_run(tmp_path / "run", 3)
    packed = (run / "rollouts" / "step-000003.jsonl.gz").read_bytes()
    stored = gzip.decompress(packed).splitlines()
    groups = [group_from_json(json.loads(line)) for line in stored]
    assert len(groups) == 10 and all(len(group.completions) == 10 for group in groups)
    index = [json.loads(line) for line in (run / "rollouts" / "index.jsonl").open()]
    assert [name for name, *_ in index[2]["groups"]] == [group.problem.id for group in groups]


def test_every_step_of_opening_is_measured(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "why_no_browser", lambda: "not in this test")
    seconds = viewer.measure(viewer.make_run(tmp_path / "run", 20))
    parts = ("command to address", "list of runs", "all curves")
    assert seconds["open: sum of the above"] == pytest.approx(sum(seconds[p] for p in parts))
    assert seconds["(steps searched in that slice)"] == 20
    assert all(value > 0 for value in seconds.values())
