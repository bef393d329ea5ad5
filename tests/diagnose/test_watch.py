"""When findings appear and go: once each, whatever the noise."""

import json
import logging
import pathlib
import random
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.diagnose import SYMPTOMS, FindingChange, Watch, diagnose
from groupwise.diagnose.history import KEPT, START, History
from groupwise.tracking.findings import note
from groupwise.tracking.run import RunFolder, read_lines, read_metrics
from groupwise.training.api import train
from runs import small_config
from synthetic_runs import healthy_run


def changes(rows: list[dict], code: str) -> list[FindingChange]:
    watch = Watch()
    found = [change for row in rows for change in watch.add(row)]
    return [change for change in found if change.finding.code == code]


def test_a_finding_appears_once_and_goes_once() -> None:
    rows = healthy_run(100, truncated=lambda step: 0.9 if 30 <= step < 60 else 0.0)
    appeared, gone = changes(rows, "truncated")
    assert 30 <= appeared.step <= 40 and not appeared.gone
    assert 60 <= gone.step <= 80 and gone.gone
    assert gone.finding.step == appeared.step


@pytest.mark.parametrize("limit", [0.4, 0.45, 0.5])
def test_a_number_that_hovers_around_a_limit_does_not_flicker(limit: float) -> None:
    rng = random.Random(0)
    rows = healthy_run(1000, truncated=lambda step: min(max(rng.gauss(limit, 0.08), 0), 0.99))
    assert len(changes(rows, "truncated")) <= 2


def test_one_bad_step_is_no_finding() -> None:
    rows = healthy_run(60, truncated=lambda step: 0.99 if step == 30 else 0.0)
    assert changes(rows, "truncated") == []


def test_the_end_of_a_run_is_diagnosed_as_the_run_was_watched() -> None:
    rows = healthy_run(100, truncated=lambda step: 0.9 if step > 60 else 0.0)
    watch = Watch(metrics=rows[:70])
    for row in rows[70:]:
        watch.add(row)
    assert watch.standing == diagnose(rows) != []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["reward", "tokens", "entropy", "kl", "truncated", "eval/accuracy",
                             "no_spread", "grad_norm", "seconds", "spread/a", "spread/b",
                             "varied/a", "rewards/format", "seconds/eval"]),
            st.one_of(st.floats(), st.integers(-9, 9), st.none(), st.text(max_size=3)),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_no_metrics_are_too_strange_to_be_read(rows: list[dict]) -> None:
    for finding in diagnose(rows):
        assert finding.code in SYMPTOMS and finding.evidence and finding.advice


def test_the_cost_of_a_step_does_not_grow_with_the_run() -> None:
    rows, watch, seconds = healthy_run(4_000), Watch(), []
    for first in range(0, len(rows), 500):
        began = time.process_time()
        for row in rows[first : first + 500]:
            watch.add(row)
        seconds.append(time.process_time() - began)
    assert min(seconds[-3:]) < 2.5 * min(seconds[1:4])  # it would be more than three times as much


def test_diagnosis_loads_no_torch() -> None:
    code = "import sys, groupwise.diagnose; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_changes_are_written_and_said(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = healthy_run(100, truncated=lambda step: 0.9 if 30 <= step < 60 else 0.0)
    with caplog.at_level(logging.INFO, logger="groupwise"):
        note(changes(rows, "truncated"), tmp_path)
    lines = read_lines(tmp_path / "findings.jsonl")
    assert [line["gone"] for line in lines] == [False, True]
    assert lines[0]["code"] == "truncated" and lines[0]["step"] < lines[1]["step"]
    assert "Try: rollout.max_completion_tokens=" in caplog.text and "gone: Most" in caplog.text


def test_a_run_notes_its_findings_and_ends_with_those_that_stand(tmp_path: pathlib.Path) -> None:
    config = small_config("steps=6", "rollout.max_completion_tokens=2", "checkpoint.every=6")
    result = train(config, tmp_path / "run", quiet=True)
    (said,) = [x for x in read_lines(tmp_path / "run/findings.jsonl") if x["code"] == "truncated"]
    assert said["step"] == 5 and not said["gone"]
    standing = {finding["code"]: finding for finding in result.summary["findings"]}
    assert standing["truncated"]["severity"] == "error"
    assert "limit of 2 tokens" in standing["truncated"]["evidence"]
    saved = json.loads((tmp_path / "run/summary.json").read_text())
    assert saved["findings"] == result.summary["findings"]
    assert read_metrics(tmp_path / "run")[0].keys() >= {"spread/correct", "varied/format"}


def test_a_run_that_goes_on_from_a_checkpoint_forgets_later_findings(
    tmp_path: pathlib.Path,
) -> None:
    rows = healthy_run(100, truncated=lambda step: 0.9 if 30 <= step < 60 else 0.0)
    with RunFolder(tmp_path / "run", small_config()) as run:
        note(changes(rows, "truncated"), run.path)
        run.rewind(50)
        (kept,) = read_lines(run.path / "findings.jsonl")
    assert kept["step"] <= 50 and not kept["gone"]


def test_what_is_kept_of_a_long_run_does_not_grow() -> None:
    history = History()
    for step in range(1, 2001):
        row = {"step": step, "reward": step / 7, "seconds": 1.0}
        history.add(row | ({"eval/accuracy": 0.5} if step % 10 == 0 else {}))
    kept = [len(c.first) + len(c.values) + len(c.steps) for c in history.columns.values()]
    assert max(kept) <= START + 2 * KEPT
    assert history.evaluations() == [1960, 1970, 1980, 1990, 2000]
    assert history.around("reward", 1960) == pytest.approx(1958 / 7)
    assert history.around("eval/accuracy", 1960) == 0.5
    assert history.columns["reward"].best == pytest.approx(1998 / 7)
    assert (history.start("reward"), history.now("reward", 1)) == pytest.approx((3 / 7, 2000 / 7))


def test_a_clock_that_was_set_back_divides_nothing_by_zero() -> None:
    watch = Watch()
    for step in range(1, 50):
        watch.add({"step": step, "seconds": 0.0, "seconds/generate": 5.0})
    assert not watch.standing
