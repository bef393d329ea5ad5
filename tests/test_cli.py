"""The commands as a person runs them."""

import json
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from rich.text import Text
from typer.main import get_command
from typer.testing import CliRunner

import groupwise
from groupwise.cli.main import app
from groupwise.recipe import list_recipes, load_recipe
from runs import SMALL

SETTINGS = ["device=cpu", "task.train_size=64", "task.test_size=8", "eval.problems=4"]
QUICK = [*SETTINGS, "steps=2", "batch.prompts=2", "batch.group_size=2", "eval.every=1"]


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_version_and_the_shell_completion_can_be_asked_for() -> None:
    assert invoke("--version") == f"groupwise {groupwise.__version__}\n"
    assert "--install-completion" in invoke("--help")


def test_help_says_what_is_used_where_nothing_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    commands = {
        "view": ("(runs)", "(8642, or a free one)"),
        "export": ("(RUN/export, RUN/export_TO.py)",),
        "explain": ("(the last after a checkpoint)", "(most spread)"),
        "train": ("(runs/RECIPE)",),
    }
    for command, defaults in commands.items():
        output = invoke(command, "--help")
        for default in defaults:
            assert f"[default: {default}]" in output, output


def test_no_help_text_has_words_in_brackets_which_rich_would_swallow() -> None:
    """Help is rich markup: "[default: x]" inside it never reaches the screen."""

    def texts(command: Any) -> Iterator[str]:
        yield command.help or ""
        for parameter in command.params:
            yield getattr(parameter, "help", None) or ""
        for inner in getattr(command, "commands", {}).values():
            yield from texts(inner)

    swallowed = [text for text in texts(get_command(app)) if Text.from_markup(text).plain != text]
    assert not swallowed


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    output = invoke("train", *QUICK, "--out", str(folder))
    assert "test accuracy" in output and "groupwise view" in output
    return folder


def test_train_leaves_a_whole_run_folder(run: pathlib.Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert names >= {
        "config.yaml", "metrics.jsonl", "rollouts", "checkpoints", "best", "model",
        "summary.json", "events", "reward.png",
    }  # fmt: skip
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["steps"] == 2 and summary["seconds"] > 0
    for moment in ("before", "after"):
        assert summary[moment].keys() >= {"accuracy", "pass@4", "maj@4", "format", "tokens"}
    assert (run / "reward.png").read_bytes().startswith(b"\x89PNG")
    resolved = yaml.safe_load((run / "config.yaml").read_text())
    assert resolved["algorithm"]["surrogate"]["clip_high"] == 0.2 and resolved["steps"] == 2


def test_a_finished_run_is_left_as_it_is(run: pathlib.Path) -> None:
    before = (run / "metrics.jsonl").read_text()
    assert "finished" in invoke("train", *QUICK, "--out", str(run))
    assert (run / "metrics.jsonl").read_text() == before


def test_eval_of_a_run_and_of_a_model(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "metrics.json"
    output = invoke("eval", str(run), "--k", "2", "--limit", "4", "--json", str(target))
    metrics = json.loads(target.read_text())
    assert metrics.keys() >= {"accuracy", "sampled", "pass@2", "maj@2", "format", "tokens"}
    assert metrics["problems"] == 4 and "pass@2" in output
    invoke("eval", "tiny", "--k", "1", "--limit", "4", "--json", str(target), "device=cpu")
    assert "pass@1" not in json.loads(target.read_text())
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "test"):
        lines = [{"question": f"{i}+1?", "answer": f"easy\n#### {i + 1}"} for i in range(9)]
        text = "\n".join(json.dumps(line) for line in lines)
        (data / f"{split}.jsonl").write_text(text)
    options = ["--task", "gsm8k", "--data", str(data), "--limit", "3", "--json", str(target)]
    invoke("eval", "tiny", *options, "device=cpu", "task.validation_size=2",
           "rollout.max_completion_tokens=8")  # fmt: skip
    assert json.loads(target.read_text())["problems"] == 3


def test_sample_shows_answers(run: pathlib.Path) -> None:
    held_out = invoke("sample", str(run), "--n", "2")
    assert held_out.count("correct") >= 2 and "What is" in held_out
    own = invoke("sample", "tiny", "What is 3+4?", "--n", "2", "--temperature", "0")
    assert "What is 3+4?" in own


def test_a_question_of_ones_own_is_asked_as_the_run_was_trained() -> None:
    from groupwise.samples.show import asked_as_trained

    system = {"role": "system", "content": "Be brief."}

    def problem(n: int) -> groupwise.Problem:
        turns = (system, {"role": "user", "content": f"{n}+1?"})
        return groupwise.Problem(str(n), turns, prefill="<think>")

    chat = groupwise.Task("chat", [problem(n) for n in range(9)])
    asked = asked_as_trained("Why?", chat)
    assert asked.prompt == (system, {"role": "user", "content": "Why?"})
    assert asked.prefill == "<think>"
    text = groupwise.Task("text", [groupwise.Problem(str(n), f"{n}+1=") for n in range(9)])
    assert asked_as_trained("Why?", text).prompt == "Why?"


def test_check_says_what_a_recipe_will_do() -> None:
    output = invoke("check", "demo", "batch.prompts=3", "batch.epochs=2")
    assert "3 prompts x 8 answers = 24 answers a step, 2 optimizer steps" in output
    assert "shared-prefix" in output and "4096 train" in output


def test_recipes_are_listed_and_all_of_them_load() -> None:
    output = invoke("recipes")
    assert "demo" in output
    for name in list_recipes():
        assert name in output
        load_recipe(name)


def test_help_has_examples() -> None:
    for command in ("train", "eval", "sample", "check"):
        assert f"groupwise {command}" in invoke(command, "--help")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_saves_and_exits_with_3_and_the_same_command_goes_on(
    number: signal.Signals, tmp_path: pathlib.Path
) -> None:
    recipe = tmp_path / "long.yaml"
    recipe.write_text(yaml.safe_dump({**SMALL, "steps": 5000, "checkpoint": {"every": 0}}))
    command = [sys.executable, "-m", "groupwise", "train", str(recipe), "--quiet"]
    out = tmp_path / "run"
    process = subprocess.Popen(
        [*command, "--out", str(out)], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").read_text():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 3
    last = errors.strip().splitlines()[-1]
    assert f"stopped by {number.name}" in last and "the same command goes on" in last
    assert list((out / "checkpoints").glob("step-*"))
