"""The end of a run: no run in which all went wrong ends without a word, however short it was."""

import json
import logging
import pathlib
from typing import Any

import pytest

import groupwise
from groupwise.config import Config
from groupwise.diagnose import Finding, diagnose_outcome
from groupwise.errors import GroupwiseError
from runs import small_config
from synthetic_runs import Row, always, healthy_run

GOOD = {"accuracy": 0.27, "truncated": 0.0, "problems": 200.0}


Metrics = dict[str, float]


def outcome(rows: list[Row], before: Metrics, after: Metrics) -> dict[str, Finding]:
    return {finding.code: finding for finding in diagnose_outcome(rows, before, after, Config())}


def test_accuracy_that_falls_is_said_and_chance_is_not() -> None:
    rows = healthy_run(3)
    lost = outcome(rows, GOOD, {**GOOD, "accuracy": 0.0})["accuracy_lost"]
    assert lost.severity == "error" and "from 27 % to 0 %" in lost.title
    assert not outcome(rows, GOOD, {**GOOD, "accuracy": 0.25})
    assert not outcome(rows, GOOD, {**GOOD, "accuracy": 0.9})
    few = {"accuracy": 0.5, "problems": 4.0}
    assert not outcome(rows, few, {**few, "accuracy": 0.25})


@pytest.mark.parametrize("steps", [1, 3, 60])
def test_a_run_without_any_gradient_learned_nothing(steps: int) -> None:
    dead: dict[str, Any] = {"no_spread": always(1.0), "updates": always(0.0)}
    findings = outcome(healthy_run(steps, **dead), GOOD, GOOD)
    assert findings["nothing_learned"].severity == "error"
    assert "no_spread" not in findings
    one_learned = healthy_run(steps, **dead) + healthy_run(1, updates=always(1.0))
    assert "nothing_learned" not in outcome(one_learned, GOOD, GOOD)


def test_answers_that_are_all_cut_off_are_said_after_two_steps() -> None:
    findings = outcome(healthy_run(2), GOOD, {**GOOD, "truncated": 1.0})
    assert list(findings) == ["eos_never"]
    assert not outcome(healthy_run(2), GOOD, {**GOOD, "truncated": 0.9})


def test_a_healthy_run_ends_without_a_word() -> None:
    assert not outcome(healthy_run(60), GOOD, {**GOOD, "accuracy": 0.8})


def test_the_end_of_a_real_run_says_so_in_the_terminal_the_summary_and_the_report(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def same(completion: str) -> float:
        return 0.0

    result = groupwise.train(small_config("steps=2"), tmp_path / "run", rewards=[same])
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())["findings"]
    assert "nothing_learned" in {finding["code"] for finding in stored}
    assert "Nothing was learned" in " ".join(capsys.readouterr().out.split())
    assert "Nothing was learned" in result.report.read_text()


def test_a_failed_start_leaves_no_folder(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "groupwise")
    run = tmp_path / "runs" / "a"
    with pytest.raises(GroupwiseError, match="nowhere"):
        groupwise.train(small_config("model=./nowhere"), run, quiet=True)
    assert not run.exists()

    def broken(completion: str) -> float:
        raise KeyError("answer")

    with pytest.raises(GroupwiseError, match="broken"):
        groupwise.train(small_config(), run, rewards=[broken], quiet=True)
    assert not run.exists()
    (run / "mine").mkdir(parents=True)
    with pytest.raises(GroupwiseError, match="not empty"):
        groupwise.train(small_config(), run, quiet=True)
    assert (run / "mine").is_dir()
