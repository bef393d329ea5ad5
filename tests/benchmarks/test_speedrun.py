"""The speedrun's rules: what may be changed, what counts, and the table in docs/learning.md."""

import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import speedrun  # noqa: E402
from groupwise.recipe import load_recipe  # noqa: E402
from speedrun import SEEDS, TRACKS, Run, check_settings, table, verdict  # noqa: E402


def runs(*accuracies: float) -> list[Run]:
    return [Run(seed, 60.0, 40.0, 60, accuracy) for seed, accuracy in enumerate(accuracies)]


def test_the_mean_of_the_seeds_counts() -> None:
    track = TRACKS["cpu"]
    assert verdict(track, runs(0.94, 0.96, 0.95)) == (pytest.approx(0.95), True)
    assert verdict(track, runs(0.94, 0.95, 0.95))[1] is False


@pytest.mark.parametrize("setting", ["task.test_size=10", "seed=7", "eval.problems=5", "steps"])
def test_what_a_track_fixes_stays(setting: str) -> None:
    with pytest.raises(SystemExit, match="fixed by the track"):
        check_settings(TRACKS["cpu"], [setting])
    check_settings(TRACKS["cpu"], ["steps=40", "optimizer.lr=1e-4"])


@pytest.mark.parametrize("name", TRACKS)
def test_the_settings_of_a_track_exist(name: str) -> None:
    track = TRACKS[name]
    recipe, preset = track.recipe[0], track.recipe[2] if len(track.recipe) > 1 else None
    settings = [*speedrun.RECORD_SETTINGS[name], *track.fixed]
    assert load_recipe(recipe, settings, preset=preset).steps > 0


def test_the_page_shows_the_records() -> None:
    lines = speedrun.RECORDS.read_text().splitlines() if speedrun.RECORDS.exists() else []
    records = [json.loads(line) for line in lines]
    assert all(len(record["accuracy"]) == len(SEEDS) for record in records)
    assert table(records) in (ROOT / "docs" / "learning.md").read_text()
