"""Runs side by side: what is stored for it, the bootstrap, and what is said about differences."""

import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from groupwise.cli.main import app
from groupwise.errors import RunFolderError
from groupwise.evaluate import STORED_TEXT
from groupwise.report.compare import NO_DIFFERENCE, bootstrap, compare_runs, word_for
from groupwise.tracking.run import read_lines
from groupwise.training.api import train
from runs import small_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("compare") / "run"
    train(small_config("steps=2"), folder, quiet=True)
    return folder


def test_held_out_results_are_stored_problem_by_problem_and_give_the_summary(
    run: pathlib.Path,
) -> None:
    summary = json.loads((run / "summary.json").read_text())
    for moment in ("before", "after"):
        lines = read_lines(run / "eval" / f"{moment}.jsonl")
        means = summary[moment]
        assert len(lines) == len({line["id"] for line in lines}) == means["problems"] == 4

        def mean(values: list[float]) -> float:
            return sum(values) / len(values)

        assert mean([line["correct"] for line in lines]) == means["accuracy"]
        assert mean([line["format"] for line in lines]) == means["format"]
        assert mean([line["tokens"] for line in lines]) == means["tokens"]
        assert mean([line["truncated"] for line in lines]) == means["truncated"]
        assert mean([line["reward"] for line in lines]) == pytest.approx(means["reward"])
        sampled = mean([mean(line["sampled"]) for line in lines])
        assert sampled == pytest.approx(means["sampled"]) and len(lines[0]["sampled"]) == 2
        for name in ("correct", "format"):
            scores = [line["rewards"][name] for line in lines]
            assert mean(scores) == pytest.approx(means[f"rewards/{name}"])
        assert all(0 < len(line["text"]) <= STORED_TEXT for line in lines)


def test_the_table_of_before_and_after_is_in_the_run_folder(run: pathlib.Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    head, _, *rows = (run / "eval" / "before_after.md").read_text().splitlines()
    assert head == "| 4 test problems | before | after | change |"
    table = {cells[1].strip(): cells[2:5] for cells in (row.split("|") for row in rows)}
    assert table.keys() >= {"accuracy (greedy)", "format", "tokens per answer", "reward: correct"}
    shown = [cell.strip() for cell in table["format"]][:2]
    assert shown == [f"{summary[m]['format']:.1%}" for m in ("before", "after")]


def line(index: int, correct: float, **more: Any) -> dict[str, Any]:
    return {"id": f"p{index}", "question": f"q{index}", "correct": correct, "format": 1.0,
            "tokens": 10 + index, "truncated": False, **more}  # fmt: skip


def fake_run(folder: pathlib.Path, lines: list[dict[str, Any]], **settings: Any) -> pathlib.Path:
    (folder / "eval").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"task": {"kind": "sums"}, **settings}))
    (folder / "eval" / "after.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder


def rows(found: Any) -> dict[str, Any]:
    return {row.metric: row for row in found.rows}


def test_the_interval_of_a_mean_has_the_width_that_theory_gives_it() -> None:
    generator = np.random.default_rng(3)
    values = generator.normal(size=(1, 400))
    (mean,), (low,), (high,) = bootstrap(values, seed=0, resamples=10_000)
    half = 1.96 * values.std() / 20
    assert mean == pytest.approx(values.mean())
    assert low == pytest.approx(mean - half, abs=0.06 * half)
    assert high == pytest.approx(mean + half, abs=0.06 * half)


def test_pairing_finds_a_small_steady_gain_that_unpaired_intervals_hide(
    tmp_path: pathlib.Path,
) -> None:
    generator = np.random.default_rng(0)
    base = (generator.random(200) < 0.5).astype(float)
    better = base.copy()
    better[np.flatnonzero(base == 0)[:10]] = 1  # ten of 200 problems more
    a = fake_run(tmp_path / "a", [line(i, v) for i, v in enumerate(base)], seed=0)
    b = fake_run(tmp_path / "b", [line(i, v) for i, v in enumerate(better)], seed=1)
    found = compare_runs([a, b])
    row = rows(found)["correct"]
    assert row.differences[0].value == pytest.approx(0.05)
    assert row.differences[0].word == "better"
    # A share p of 200 problems gained: 1.96 * sqrt(p (1 - p) / 200) either way.
    assert row.differences[0].low == pytest.approx(0.05 - 0.0302, abs=0.006)
    assert row.values[0].high > row.values[1].low, "unpaired, the two cannot be told apart"
    assert rows(found)["format"].differences[0].word == NO_DIFFERENCE
    assert rows(compare_runs([b, a]))["correct"].differences[0].word == "worse"
    assert found.settings == {"seed": (0, 1)} and found.problems == 200 and not found.notes
    assert compare_runs([a, b]) == found, "the same seed gives the same intervals"


def test_unscored_answers_are_left_out_of_means_and_pairs(tmp_path: pathlib.Path) -> None:
    scores_a, scores_b = [1.0, None, 0.0, 1.0] * 10, [1.0, 1.0, None, 0.0] * 10
    a, b = (
        fake_run(tmp_path / n, [line(i, 0, rewards={"r": v}) for i, v in enumerate(scores)])
        for n, scores in (("a", scores_a), ("b", scores_b))
    )
    row = rows(compare_runs([a, b]))["rewards/r"]
    assert row.values[0].value == pytest.approx(2 / 3)
    assert row.differences[0].value == pytest.approx(-0.5), "of the pairs 1-1 and 1-0"
    nobody = fake_run(tmp_path / "c", [line(i, 0, rewards={"r": None}) for i in range(40)])
    found = compare_runs([a, nobody])
    assert rows(found)["rewards/r"].differences[0].word == NO_DIFFERENCE
    assert "NaN" not in json.dumps(found.json())


def test_a_part_in_common_is_compared_and_said_and_nothing_in_common_is_refused(
    tmp_path: pathlib.Path,
) -> None:
    a = fake_run(tmp_path / "a", [line(i, 1) for i in range(8)])
    b = fake_run(tmp_path / "b", [line(i, 1) for i in range(4, 20)])
    found = compare_runs([a, b])
    assert found.problems == 4
    assert "8 and 16" in found.notes[0] and "only 4 problems" in found.notes[1]
    other = [{**line(i, 1), "question": "another question of the same number"} for i in range(8)]
    c = fake_run(tmp_path / "c", other)
    with pytest.raises(RunFolderError, match="share no test problem"):
        compare_runs([a, c])


def test_runs_without_stored_problems_say_why(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        compare_runs([tmp_path, run])
    unfinished = fake_run(tmp_path / "a", [])
    (unfinished / "eval" / "after.jsonl").unlink()
    with pytest.raises(RunFolderError, match="not finished"):
        compare_runs([run, unfinished])
    old = shutil.copytree(run, tmp_path / "old")
    shutil.rmtree(old / "eval")
    with pytest.raises(RunFolderError, match="before they were stored"):
        compare_runs([run, old])


@pytest.mark.parametrize(
    ("metric", "low", "high", "word"),
    [
        ("correct", 0.01, 0.2, "better"),
        ("correct", -0.2, -0.01, "worse"),
        ("correct", 0.0, 0.2, NO_DIFFERENCE),
        ("truncated", 0.01, 0.2, "worse"),
        ("tokens", 1, 2, "longer"),
        ("tokens", -2, -1, "shorter"),
        ("rewards/x", float("nan"), float("nan"), NO_DIFFERENCE),
    ],
)
def test_words_say_which_way_is_good(metric: str, low: float, high: float, word: str) -> None:
    assert word_for(metric, low, high) == word


def test_one_run_is_compared_before_against_after(
    run: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    target = tmp_path / "out.json"
    result = CliRunner().invoke(app, ["compare", str(run), "--json", str(target)])
    assert result.exit_code == 0, result.output
    assert "accuracy (greedy)" in result.output and "only 4 problems" in result.output
    found = json.loads(target.read_text())
    summary = json.loads((run / "summary.json").read_text())
    assert found["names"] == ["before", "after"]
    (row,) = [row for row in found["rows"] if row["metric"] == "tokens"]
    assert [v["value"] for v in row["values"]] == [summary[m]["tokens"] for m in found["names"]]
