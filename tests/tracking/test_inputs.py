"""Files that a run reads, changed between two starts: the run goes on and says so."""

import logging
import pathlib
import shutil

import pytest

from groupwise.policy.resolve import TINY
from groupwise.recipe import parse
from groupwise.tracking import inputs
from groupwise.tracking.inputs import BLOCK, digest, input_paths, note_inputs
from groupwise.tracking.run import INDEX, RunFolder, stored_steps
from groupwise.training.api import train
from runs import SMALL, small_config


def write_problems(path: pathlib.Path, answer: str) -> None:
    path.write_text("".join(f'{{"prompt": "{i}+{i}=", "answer": "{answer}"}}\n' for i in range(40)))


@pytest.mark.slow
def test_a_data_file_that_changed_is_named_when_the_run_goes_on(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data.jsonl"
    write_problems(data, "2")
    task = f"task={{kind: jsonl, path: {data}, test_size: 4}}"
    with caplog.at_level(logging.WARNING, "groupwise"):
        train(small_config(task, "steps=1"), tmp_path / "run", quiet=True)
        train(small_config(task, "steps=2"), tmp_path / "run", quiet=True)
        assert "not what it was" not in caplog.text
        write_problems(data, "3")
        train(small_config(task, "steps=3"), tmp_path / "run", quiet=True)
    (line,) = [r.message for r in caplog.records if "not what it was" in r.message]
    assert f"task.path={data}" in line


def test_reward_models_code_and_model_folders_are_inputs_and_names_are_not(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(TINY, tmp_path / "rm")
    (tmp_path / "own.py").write_text("def short(completion): return 0.0")
    rewards = f"rewards=['model:{tmp_path}/rm', '{tmp_path}/own.py:short', correct]"
    config = parse(SMALL, [rewards, f"model={tmp_path}/rm"])
    assert len(input_paths(config)) == 3
    assert input_paths(small_config()) == {}
    note_inputs(tmp_path, config, begun=True)
    (tmp_path / "rm" / "README.md").write_text("other words")
    with caplog.at_level(logging.WARNING, "groupwise"):
        note_inputs(tmp_path, config, begun=True)
        assert not caplog.text
        (tmp_path / "rm" / "config.json").write_text("{}")
        (tmp_path / "own.py").unlink()
        note_inputs(tmp_path, config, begun=True)
    assert "model:" in caplog.text and "own.py:short" in caplog.text


def test_of_large_files_blocks_from_all_over_count(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as file:
        file.truncate(100 * BLOCK)
    before = digest(path)
    with path.open("r+b") as file:
        file.seek(100 * BLOCK - 5)
        file.write(b"x")
    assert digest(path) != before


def test_of_stored_answers_the_newest_are_kept(tmp_path: pathlib.Path) -> None:
    config = small_config("tracking.keep_rollouts=2")
    with RunFolder(tmp_path / "run", config) as run:
        for step in range(1, 6):
            run.log_rollouts(step, [])
    assert stored_steps(tmp_path / "run") == [4, 5]
    assert len((tmp_path / "run" / INDEX).read_text().splitlines()) == 5


def test_a_folder_of_everything_is_not_read_whole(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert digest(pathlib.Path("/proc/self"))  # some files there never end, some cannot be read
    for name in "abc":
        (tmp_path / name).write_text(name * 100)
    whole = digest(tmp_path)
    monkeypatch.setattr(inputs, "MOST_BYTES", 150)
    (tmp_path / "c").write_text("x" * 100)  # the same size, and past what is read
    by_size = digest(tmp_path)
    (tmp_path / "c").write_text("y" * 100)
    assert whole != by_size == digest(tmp_path)
    monkeypatch.setattr(inputs, "MOST_FILES", 1)
    assert digest(tmp_path) != by_size
