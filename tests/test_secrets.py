"""Secrets do not get into what is shown or kept: texts, run folders, model cards, reports."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from groupwise.cli.main import app
from groupwise.config import Config
from groupwise.recipe import parse, read_yaml
from groupwise.report.model_card import model_card
from groupwise.report.run_page import report_page
from groupwise.secrets import masked, without_secrets
from groupwise.tracking.run import RunFolder, differences

SECRETS = ("hunter22", "q-9876543210", "b-1234567890", "f-1122334455")


def config_with_secrets() -> Config:
    options = {
        "url": f"https://me:{SECRETS[0]}@host/v1?api_key={SECRETS[1]}&version=2",
        "model": "m",
        "request": {
            "extra_headers": {"Authorization": f"Bearer {SECRETS[2]}"},
            "api_key": SECRETS[3],
            "max_tokens": 5,
        },
    }
    rewards = ["correct", {"name": "judge", "weight": 0.5, "options": options}]
    return parse({"rewards": rewards, "tracking": {"tensorboard": False}})


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("http://u:p@host:80/x and ftp://t@host", "http://***@host:80/x and ftp://***@host"),
        ("http://u:p@ss@host/a@b", "http://***@host/a@b"),
        ("/v1?n=1&access_token=abc#x", "/v1?n=1&access_token=***#x"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ('{"api_key": "0123456789"}', '{"api_key": "***"}'),
        ("sk-proj-abcdefghijklmnop1234 hf_abcdefghijklmnopqr", "*** ***"),
        ("max_tokens=12345678, key_variable: OPENAI_API_KEY", None),
        ("a task-with-many-words-in-it, me@example.org", None),
        ("http://host/v1?keys=1", None),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, safe: str | None) -> None:
    assert masked(text) == (text if safe is None else safe)
    assert masked(masked(text)) == masked(text)


def test_values_of_the_environments_keys_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "open/sesame+1")
    monkeypatch.setenv("SOME_TOKEN", "short")
    assert masked("open/sesame+1, open%2Fsesame%2B1, short") == "***, ***, short"
    assert masked("short", "short") == "***"


def test_settings_keep_all_but_their_secrets() -> None:
    tree = config_with_secrets().model_dump(mode="json")
    safe = without_secrets(tree)
    options = safe["rewards"][1]["options"]
    assert options["url"] == "https://***@host/v1?api_key=***&version=2"
    assert options["request"] == {
        "extra_headers": {"Authorization": "***"},
        "api_key": "***",
        "max_tokens": 5,
    }
    assert without_secrets({"headers": {"X-Own": "abcdefghij"}}) == {"headers": {"X-Own": "***"}}
    assert without_secrets(Config().model_dump(mode="json")) == Config().model_dump(mode="json")


def test_run_folders_cards_and_reports_hold_no_secrets(tmp_path: Path) -> None:
    config = config_with_secrets()
    with RunFolder(tmp_path / "run", config) as run:
        (run.path / "checkpoints").mkdir()
    with RunFolder(tmp_path / "run", config):  # the same settings: it may go on
        pass
    stored = parse(read_yaml(tmp_path / "run" / "config.yaml"))
    assert differences(stored, config) == []
    numbers = {"accuracy": 0.5, "problems": 4.0}
    summary = {"before": numbers, "after": numbers, "steps": 1, "seconds": 1.0, "status": "done"}
    texts = [model_card(config, summary), report_page(tmp_path / "run", summary)]
    texts += [file.read_text() for file in (tmp_path / "run").rglob("*") if file.is_file()]
    for text in texts:
        assert not [secret for secret in SECRETS if secret in text]
    assert all("host/v1?api_key=***" in text.replace("&amp;", "&") for text in texts[:2])


def test_the_command_line_masks_its_errors() -> None:
    address = f"http://me:{SECRETS[0]}@host/v1?api_key={SECRETS[1]}"
    command = [sys.executable, "-m", "groupwise", "check", "demo", f"steps={address}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "http://***@host/v1?api_key=***" in done.stderr
    assert SECRETS[0] not in done.stderr and SECRETS[1] not in done.stderr


def test_the_command_line_masks_its_log() -> None:
    from groupwise.cli.main import _mask

    record = logging.LogRecord("groupwise", 20, "", 0, "to %s", ("http://u:p@host",), None)
    assert _mask(record) and record.getMessage() == "to http://***@host"


def test_no_command_takes_a_token_on_its_command_line() -> None:
    """A list of processes shows command lines to every user of the machine."""
    group = typer.main.get_command(app)
    options = [
        option
        for command in commands_in(group)
        for parameter in command.params
        for option in parameter.opts
    ]
    assert "--port" in options
    assert not [option for option in options if option in ("--token", "--key", "--api-key")]


def commands_in(command: Any) -> Iterator[Any]:
    yield command
    for name in getattr(command, "commands", {}):
        yield from commands_in(command.commands[name])
