"""Recorded learning: what the page says is what the records hold, and the script runs."""

import json
import pathlib
import re
import statistics
import subprocess
import sys
from typing import Any

import pytest

from groupwise.recipe import load_recipe

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "learning.md").read_text()


def records(what: str, side: str) -> list[dict[str, Any]]:
    path = ROOT / "benchmarks" / "results" / f"learning-{what}-{side}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_gsm8k_is_as_the_page_says() -> None:
    ours, theirs = records("gsm8k", "groupwise"), records("gsm8k", "trl")
    tests = [line for line in ours if "test" in line]
    accuracies = [f"{100 * line['test']['accuracy']:.1f} %" for line in tests]
    assert f"| test accuracy | {' | '.join(accuracies)} |" in PAGE
    formats = [f"{100 * line['test']['format']:.1f} %" for line in tests]
    assert f"| test format | {' | '.join(formats)} |" in PAGE
    assert tests[-1]["test"]["accuracy"] - tests[0]["test"]["accuracy"] > 0.12
    last = theirs[-1]["step"]
    assert f"{theirs[last]['seconds'] / ours[last]['seconds']:.1f} times as fast" in PAGE
    ratio = statistics.median(_steps(theirs, last)) / statistics.median(_steps(ours, last))
    assert f"({ratio:.1f} times)" in PAGE
    means = [statistics.mean(line["reward"] for line in run[8:18]) for run in (ours, theirs)]
    assert f"{means[0]:.3f} and {means[1]:.3f}" in PAGE


def programs_records(side: str, seed: int) -> list[dict[str, Any]]:
    text = (ROOT / "benchmarks" / "results" / "learning-programs.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if (line["side"], line["seed"]) == (side, seed)]


@pytest.mark.parametrize(
    ("side", "name"),
    [("words", "GSM8K in words"), ("programs", "GSM8K with programs, up to 4 turns")],
)
def test_programs_are_as_the_page_says(side: str, name: str) -> None:
    run = programs_records(side, 0)
    before, after = (f"{100 * line['test']['accuracy']:.1f} %" for line in (run[0], run[-1]))
    seconds = sum(line["seconds"] for line in run[1:])
    assert f"| {name} | {before} | {after} | {len(run) - 1} | {seconds:.0f} |" in PAGE


def test_the_last_steps_with_programs_and_in_words_are_as_the_page_says() -> None:
    """Seeds 1 and 0, programs first."""
    for seed, written in ((1, "72.1 % with programs and 68.6 % in words"), (0, "69.6 and 68.9 %")):
        shares = [
            statistics.mean(line["rewards/correct"] for line in programs_records(side, seed)[-10:])
            for side in ("programs", "words")
        ]
        assert [f"{100 * share:.1f}" for share in shares] == re.findall(r"[\d.]+(?= )", written)
        assert written in PAGE


def test_programs_and_words_differ_in_the_prompt_and_the_environment_alone() -> None:
    path = str(ROOT / "benchmarks" / "gsm8k_programs.yaml")
    programs, words = (load_recipe(path, preset=preset).model_dump() for preset in (None, "words"))
    assert {key for key in programs if programs[key] != words[key]} == {"task", "environment"}
    assert programs["task"] | {"system": ""} == words["task"] | {"system": ""}


def _steps(run: list[dict[str, Any]], last: int) -> list[float]:
    return [run[n]["seconds"] - run[n - 1]["seconds"] for n in range(2, last + 1)]


@pytest.mark.parametrize(("side", "name"), [("groupwise", "groupwise"), ("trl", "TRL")])
def test_sums_are_as_the_page_says(side: str, name: str) -> None:
    ends = [line for line in records("sums", side) if line["step"] == 50]
    accuracies = ", ".join(f"{100 * line['test']['accuracy']:.1f}" for line in ends)
    seconds = ", ".join(f"{line['seconds']:.1f}" for line in ends)
    assert f"| {name} | 14.7 % | {accuracies} % | {seconds} |" in PAGE


@pytest.mark.slow
def test_both_sides_run_and_start_from_the_same_model(tmp_path: pathlib.Path) -> None:
    small = ["batch.prompts=2", "batch.group_size=4", "eval.problems=8", "device=cpu"]
    subprocess.run(
        [sys.executable, "benchmarks/learning.py", "sums", "--model", "tiny", "--steps", "1",
         "--test-every", "1", "--out", str(tmp_path), *small],
        cwd=ROOT, check=True, timeout=300,
    )  # fmt: skip
    lines = [
        [json.loads(text) for text in path.read_text().splitlines()]
        for path in sorted(tmp_path.glob("learning-sums-*.jsonl"))
    ]
    assert [[line["step"] for line in run] for run in lines] == [[0, 1], [0, 1]]
    assert [run[1]["samples"] for run in lines] == [8, 8]
    ours, theirs = (run[0]["test"] | {"seconds": 0} for run in lines)
    assert ours == theirs
