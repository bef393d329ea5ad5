"""groupwise reward fit, score, eval and pairs, as a person runs them."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from groupwise.cli.main import app, main
from groupwise.errors import ConfigError, GroupwiseError
from groupwise.training.api import train
from runs import small_config


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a hundred answers or so."""
    folder = tmp_path_factory.mktemp("reward") / "run"
    overrides = ("batch.prompts=8", "rollout.max_completion_tokens=48", "checkpoint.every=0")
    train(small_config(*overrides, "eval.k=1"), folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def fitted(run: Path) -> Path:
    out = run.parent / "rm"
    output = invoke("reward", "fit", str(run), "--out", str(out), "--epochs", "3")
    assert "calibration" in output and f"model:{out}" in output
    return out


def test_fit_writes_a_model_and_a_report(fitted: Path, run: Path) -> None:
    report = json.loads((fitted / "report.json").read_text())
    assert report["kind"] == "scalar" and report["source"] == str(run)
    assert 0 <= report["ece"] <= 1 and 0 <= report["auc"] <= 1
    assert report["train"] > report["validation_examples"] > 0
    assert len(report["history"]) <= 3 and 1 <= report["best_epoch"] <= 3
    assert sum(line["count"] for line in report["calibration"]) == report["validation_examples"]
    # It reads with the tokens of the model that it was fitted for.
    tokenizer = json.loads((fitted / "tokenizer.json").read_text())
    assert tokenizer["model"] == json.loads((run / "model" / "tokenizer.json").read_text())["model"]


def test_score_adds_a_score_to_every_line(fitted: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    lines = [{"prompt": "What is 1+2?", "completion": text, "n": n} for n, text in enumerate("37")]
    answers.write_text("\n".join(json.dumps(line) for line in lines))
    out = tmp_path / "scored.jsonl"
    assert "2 answers scored" in invoke(
        "reward", "score", str(fitted), str(answers), "--out", str(out)
    )
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["n"] for line in found] == [0, 1]
    assert all(isinstance(line["score"], float) for line in found)
    assert found[0]["score"] != found[1]["score"]


def test_eval_measures_on_a_run_and_on_lines(fitted: Path, run: Path, tmp_path: Path) -> None:
    target = tmp_path / "metrics.json"
    assert "auc" in invoke("reward", "eval", str(fitted), str(run), "--json", str(target))
    measured = json.loads(target.read_text())
    assert measured["count"] > 50 and 0 <= measured["auc"] <= 1


def test_conversations_make_no_pairs_and_plain_answers_can_be_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl"
    words = ["reward", "pairs", "tiny", "device=cpu", "--out", str(out), "--problems", "8"]
    environment = "environment={kind: guess_number, max_turns: 3}"
    with pytest.raises(ConfigError, match="add environment=none"):
        invoke(*words, environment)
    invoke(*words, environment, "environment=none")
    assert out.exists()


def test_pairs_are_written_labelled_and_a_preference_model_fits_them(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    words = ["tiny", "device=cpu", "--out", str(pairs), "--problems", "8", "--pairs", "3"]
    output = invoke("reward", "pairs", *words, "--temperatures", "0.5,1.5")
    lines = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert f"{len(lines)} pairs from 8 problems, {24 - len(lines)} ties" in output
    for line in lines:
        assert (line["chosen_score"], line["rejected_score"]) == (1.0, 0.0)
        gap = abs(line["chosen_temperature"] - line["rejected_temperature"])
        assert gap == pytest.approx(0.6)  # 0.5, 0.7, 0.9 against 1.1, 1.3, 1.5
    first = pairs.read_text()
    invoke("reward", "pairs", *words, "--temperatures", "0.5,1.5")
    assert pairs.read_text() == first
    out = tmp_path / "rm"
    invoke("reward", "fit", str(pairs), "--kind", "preference", "--out", str(out), "--epochs", "1")
    answers = tmp_path / "answers.jsonl"
    rows = [{"prompt": lines[0]["prompt"], "completion": text} for text in ("3", "4", "4")]
    answers.write_text("\n".join(json.dumps(row) for row in rows))
    invoke("reward", "score", str(out), str(answers), "--out", str(tmp_path / "s.jsonl"))
    scores = [json.loads(x)["score"] for x in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert sum(scores) == pytest.approx(1.5) and scores[1] == scores[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "nowhere", "--out", "rm"], "neither a run folder nor a file"),
        (["fit", "data.jsonl", "--out", "rm", "--kind", "oracle"], "scalar, cot, preference"),
        (["fit", "data.jsonl", "--out", "."], "is not empty"),
        (["fit", "data.jsonl", "--out", "rm", "--validation", "2"], "between 0 and 1"),
        (["fit", "data.jsonl", "--out", "rm", "--base", "./no"], "does not exist"),
        (["score", "tiny", "nothing.jsonl", "--out", "x"], "there is no file nothing.jsonl"),
        (["eval", "tiny", "data.jsonl"], "no reward model"),
        (["pairs", "tiny", "--out", "p", "--temperatures", "hot"], "write it as 0.7,1.3"),
        (["pairs", "tiny", "--out", "p", "--temperatures", "2,1"], "lower one first"),
        (["pairs", "tiny", "--out", "p", "--problems", "2", "--label", "x"], "correct or rewards"),
    ],
)
def test_what_cannot_work_says_how_to_fix_it(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"prompt": f"{n}?", "completion": "a", "score": n % 2} for n in range(20)]
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GroupwiseError, match=message):
        CliRunner().invoke(app, ["reward", *words], catch_exceptions=False)


def test_a_bad_reward_model_in_a_recipe_ends_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reward = 'rewards=[{name: "model:./nowhere"}]'
    command = ["groupwise", "train", "device=cpu", "--out", str(tmp_path / "run"), reward]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert "reward 'model:./nowhere'" in errors and "does not exist" in errors
