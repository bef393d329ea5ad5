"""Stored answers that anyone may have written: read whole, or refused in one sentence."""

import gzip
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from groupwise.errors import RunFolderError
from groupwise.tracking.run import RunFolder, rollouts_file, stored_groups, stored_steps
from runs import exit_code, small_config
from small_models import random_groups


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    with RunFolder(tmp_path / "run", small_config()) as folder:
        folder.log_rollouts(1, random_groups(2, 3))
        folder.log_metrics({"step": 1, "loss": 0.0, "reward": 0.5})
    return tmp_path / "run"


def test_what_was_stored_is_what_is_read(run: pathlib.Path) -> None:
    assert stored_groups(run, 1) == random_groups(2, 3)


CHANGES: list[Callable[[dict[str, Any]], object]] = [
    lambda group: group.clear(),
    lambda group: group.update(rewards=[1.0]),
    lambda group: group.update(advantages="x"),
    lambda group: group["completions"].pop(),
    lambda group: group["completions"][0].update(tokens=[[]]),
    lambda group: group["completions"][0].update(name=1),
    lambda group: group["completions"][0]["logprobs"].append(-1.0),
    lambda group: group["problem"].update(prompt=7),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_changed_answers_are_named(run: pathlib.Path, number: int) -> None:
    path = rollouts_file(run, 1)
    groups = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    CHANGES[number](groups[0])
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, groups)).encode()))
    with pytest.raises(RunFolderError, match=r"step-000001\.jsonl\.gz cannot be read"):
        stored_groups(run, 1)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b", gzip.compress(b"{", mtime=0)[:-9], b"plain"])
def test_files_that_are_none_are_named(run: pathlib.Path, content: bytes) -> None:
    rollouts_file(run, 1).write_bytes(content or gzip.compress(b"nothing"))
    with pytest.raises(RunFolderError, match="cannot be read"):
        stored_groups(run, 1)


def test_a_small_file_that_unpacks_to_gigabytes_is_refused(run: pathlib.Path) -> None:
    rollouts_file(run, 1).write_bytes(10 * gzip.compress(b" " * 20_000_000, 1))
    with pytest.raises(RunFolderError, match="unpacks to more than 200 times its size"):
        stored_groups(run, 1)


def test_a_pipe_is_no_stored_step(run: pathlib.Path) -> None:
    os.mkfifo(rollouts_file(run, 2))
    assert stored_steps(run) == [1]


def test_commands_that_look_at_a_damaged_run_say_which(
    run: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (run / "metrics.jsonl").write_text('[1]\n{"step": "x"}\n')
    (run / "summary.json").write_text('{"steps": 1, "before": 7, "after": [1]}')
    for command in ("report", "compare"):
        assert exit_code([command, str(run)], monkeypatch) == 2
        said = capfd.readouterr().err
        assert "Traceback" not in said and said.startswith("error:")
