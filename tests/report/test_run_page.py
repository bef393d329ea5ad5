"""report.html: whole, self-contained, and safe whatever a model wrote."""

import gzip
import json
import pathlib
import re
import shutil
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from groupwise.cli.main import app
from groupwise.report.html import shown
from groupwise.report.run_page import report_page
from groupwise.tracking.run import read_rollouts
from groupwise.training.api import train
from runs import small_config

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e\ud800</div><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("report") / "my-run"
    train(small_config("eval.every=2"), folder, quiet=True)
    return folder


class Balance(HTMLParser):
    """Every tag that opens closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br", "link", "path", "use", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "use", "rect"):
            assert self.open.pop() == tag


def test_a_finished_run_has_a_report_with_everything(run: pathlib.Path) -> None:
    text = (run / "report.html").read_text()
    summary = json.loads((run / "summary.json").read_text())
    assert f"{summary['after']['accuracy']:.1%}" in text and "pass@2" in text
    for part in ("my-run: finished", "4 of 4 steps", "Before and after", "Diagnosis", "Curves",
                 "Answers of step 4", "Best", "Worst", "train_size: 64"):  # fmt: skip
        assert part in text, part
    assert text.count("<svg") == 1 and "entropy" in text
    checker = Balance()
    checker.feed(text)
    assert checker.open == []


def test_nothing_in_it_needs_a_network_or_runs(run: pathlib.Path) -> None:
    text = (run / "report.html").read_text()
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"|<metadata>.*?</metadata>', "", text, flags=re.S)
    assert "http" not in without_names.replace("http-equiv", "")
    assert "default-src 'none'" in text and not re.search(r"<(script|img|iframe|link)", text)


def test_the_best_and_the_worst_answers_are_shown(run: pathlib.Path) -> None:
    groups = read_rollouts(run / "rollouts/step-000004.jsonl.gz")
    best = max(groups, key=lambda g: max(g["rewards"]))
    answer = best["completions"][best["rewards"].index(max(best["rewards"]))]["text"]
    page = report_page(run)
    assert shown(answer) in page.partition("<h3>Best</h3>")[2].partition("<h3>Worst</h3>")[0]


def test_hostile_answers_are_only_ever_text(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    path = folder / "rollouts/step-000004.jsonl.gz"
    groups = read_rollouts(path)
    for group in groups:
        group["problem"]["prompt"] = HOSTILE
        group["scores"] = {HOSTILE: group["rewards"]}
        for completion in group["completions"]:
            completion["text"] = HOSTILE + "x" * 100_000
    path.write_bytes(gzip.compress("".join(json.dumps(g) + "\n" for g in groups).encode()))
    text = report_page(folder)
    assert not re.search(r"<(script|img)", text) and "&lt;script&gt;" in text
    assert "\x1b" not in text and "\u202e" not in text and text.encode()
    assert "more characters" in text and len(text) < 400_000
    checker = Balance()
    checker.feed(text)
    assert checker.open == []


def test_a_run_that_goes_on_has_a_report_too(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "rollouts")
    target = tmp_path / "out.html"
    result = CliRunner().invoke(
        app, ["report", str(folder), "--out", str(target)], catch_exceptions=False
    )
    assert result.exit_code == 0 and "not finished" in target.read_text()
    (folder / "metrics.jsonl").write_text("")
    assert "No steps yet" in report_page(folder)


def test_the_report_of_a_long_run_stays_small(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    rows = [json.dumps(row | {"step": i, "reward": (i * 37 % 100) / 100}) for i in range(1, 3001)]
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    assert len(report_page(folder)) < 600_000
