"""What the end of a run says is wrong is said in the viewer too."""

import json
import pathlib
from dataclasses import asdict
from typing import Any

import pytest

from groupwise.diagnose import Finding
from groupwise.view.catalog import Run
from groupwise.view.findings import FindingsLog

LOST = asdict(Finding("Accuracy fell", "27 % to 0 %", "lower it", "error", "accuracy_lost", 2))


@pytest.mark.parametrize(
    ("summary", "codes"),
    [
        ({"steps": 2, "findings": [LOST]}, ["accuracy_lost"]),
        ({"steps": 1, "findings": [LOST]}, []),  # of an earlier end: the run has gone on
        ({"steps": 2, "findings": [{**LOST, "title": ["a"]}, 3, None]}, []),
        ({"steps": 2, "findings": 7}, []),
        (None, []),
    ],
)
def test_findings_of_the_summary(summary: Any, codes: list[str], tmp_path: pathlib.Path) -> None:
    rows = ({"step": step, "loss": 0.0, "reward": 0.1} for step in (1, 2))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if summary is not None:
        (tmp_path / "summary.json").write_text(json.dumps(summary))
    told = FindingsLog(Run("run", "run", tmp_path)).extend()["findings"]
    assert [finding["code"] for finding in told] == codes
