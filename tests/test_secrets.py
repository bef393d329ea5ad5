"""Secrets do not get into what is shown or kept: texts, run folders, model cards, reports."""

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import groupwise
from groupwise.cli.main import app
from groupwise.config import Config
from groupwise.errors import ConfigError
from groupwise.recipe import load_recipe, parse, read_yaml
from groupwise.report.model_card import model_card
from groupwise.report.run_page import report_page
from groupwise.secrets import check_whole, masked, without_secrets
from groupwise.tracking.run import RunFolder, differences

SECRETS = ("hunter22", "q-9876543210", "b-1234567890", "f-1122334455", "t-6677889900")


def config_with_secrets() -> Config:
    options = {
        "url": f"https://me:{SECRETS[0]}@host/v1?api_key={SECRETS[1]}&version=2",
        "model": "m",
        "my_token": SECRETS[4],
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
        ("rewards.1.options.my_token=hunter22", "rewards.1.options.my_token=***"),
        ("unknown key: batch.prompts2, eos_token: <|end2|>, a token: abcdefgh1", None),
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
    assert options["my_token"] == "***"
    assert without_secrets({"headers": {"X-Own": "abcdefghij"}}) == {"headers": {"X-Own": "***"}}
    assert without_secrets(Config().model_dump(mode="json")) == Config().model_dump(mode="json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("my_token", "abc"),
        ("token", "abc"),
        ("mytoken", "abc"),
        ("judge-token", "abc"),
        ("api_key", "abc"),
        ("apiKey", "abc"),
        ("OPENAI_API_KEY", "abc"),
        ("my_key", "abc"),
        ("key", "a1b2c3d4e5"),
        ("key2", "a1b2c3d4e5"),
        ("db_password", 1234),
        ("client_secret", "abc"),
        ("clientSecret", "abc"),
        ("access_tokens", ["abc"]),
        ("my_token", 12345678),
        ("credentials", {"user": "abc", "name": "abc"}),
    ],
)
def test_a_setting_whose_name_says_secret_is_masked(name: str, value: Any) -> None:
    hidden = without_secrets({"options": {name: value}})["options"][name]
    assert hidden in ("***", ["***"], {"user": "***", "name": "***"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 512),
        ("max_token", 512),
        ("tokenizer", "gpt2"),
        ("token_budget", 4096),
        ("key_lr", 0.1),
        ("pad_token", "<pad>"),
        ("eos_token", "<|im_end|>"),
        ("stop_tokens", ["a", "b"]),
        ("token", 7),
        ("answer_key", "solution"),
        ("key", "answer"),
        ("key", ["answer", "level"]),
        ("keys", ["answer"]),
        ("sort_key", "level"),
        ("monkey", "abc"),
        ("key_variable", "OPENAI_API_KEY"),
        ("token_env", "GROUPWISE_TOKEN"),
        ("my_token", None),
        ("use_token", False),
        ("token", {"text": "abc"}),
        ("42", "abc"),
    ],
)
def test_other_settings_are_stored_as_they_are(name: str, value: Any) -> None:
    assert without_secrets({"options": {name: value}}) == {"options": {name: value}}


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


REWARD = """
import groupwise

@groupwise.reward
def length(completion: str, my_token: str) -> float:
    assert my_token == "t-6677889900"
    return len(completion) / 100
"""


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The folder of a run whose recipe holds a token."""
    (tmp_path / "lengths.py").write_text(REWARD)
    reward = {"name": f"{tmp_path}/lengths.py:length", "options": {"my_token": SECRETS[4]}}
    (tmp_path / "recipe.yaml").write_text(
        yaml.safe_dump(
            {
                "steps": 1,
                "device": "cpu",
                "task": {"train_size": 8, "test_size": 8},
                "batch": {"prompts": 2, "group_size": 4},
                "rollout": {"max_completion_tokens": 8},
                "eval": {"problems": 4},
                "tracking": {"tensorboard": False},
                "rewards": ["correct", reward],
            }
        )
    )
    assert train(tmp_path / "recipe.yaml", tmp_path / "run").summary["steps"] == 1
    return tmp_path / "run"


def train(recipe: Path, folder: Path, **settings: Any) -> groupwise.Result:
    config = load_recipe(str(recipe), settings, trust_code=True)
    return groupwise.train(config, folder, quiet=True)


def test_a_run_with_a_token_among_its_settings_goes_on_from_the_recipe(trained: Path) -> None:
    assert train(trained.parent / "recipe.yaml", trained, steps=2).summary["steps"] == 2
    stored = [file for file in trained.rglob("*") if file.is_file()]
    assert not [file for file in stored if SECRETS[4].encode() in file.read_bytes()]
    assert read_yaml(trained / "config.yaml")["rewards"][1]["options"] == {"my_token": "***"}


def test_a_masked_setting_is_not_used_as_if_it_were_the_secret(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"options.my_token was masked.*keeps no secrets"):
        train(trained / "config.yaml", trained.parent / "other")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"url": "https://***@host/v1"}, "x.url"),
        ({"url": "https://host/v1?a=1&api_key=***&b=2"}, "x.url"),
        ({"a": [{"b": "***"}]}, "x.a.0.b"),
    ],
)
def test_masked_addresses_and_inner_settings_are_found(settings: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(name)} was masked"):
        check_whole(settings, "x")


def test_stars_in_a_text_are_no_mask() -> None:
    check_whole({"system": "*** Answer in one word ***", "n": 3, "url": "http://host/a?b=1"}, "x")


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
