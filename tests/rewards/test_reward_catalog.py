"""Names in recipes become functions, or an error that says the nearest name."""

import os
import re
from pathlib import Path

import pytest

from groupwise.errors import RewardError
from groupwise.extensions import load_object
from groupwise.rewards.base import signature_of
from groupwise.rewards.catalog import BUILTIN, resolve


@pytest.mark.parametrize("name", BUILTIN)
def test_every_built_in_reward_can_be_loaded_and_called(name: str) -> None:
    assert resolve(name) == BUILTIN[name]
    assert not signature_of(load_object(resolve(name), what="reward")).batch


def test_files_count_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def f(completion): return 3\n")
    monkeypatch.chdir(tmp_path)
    reference = resolve("mine.py:f")
    assert reference == f"{(tmp_path / 'mine.py').resolve()}:f"
    assert load_object(reference, what="reward")("x") == 3
    assert resolve(f".{os.sep}mine.py:f") == reference


def test_modules_are_found_by_their_dotted_name() -> None:
    reference = resolve("groupwise.rewards.format:tags")
    assert load_object(reference, what="reward")("<think>x</think>", names=["think"]) == 1.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("anwser", "no reward 'anwser' (did you mean 'answer'?)"),
        ("corect", "did you mean 'correct'?"),
        ("mine.py:", "must be file.py:function"),
        (":f", "must be file.py:function"),
        ("mine.py:f g", "must be file.py:function"),
        ("mime.py:f", "(did you mean 'mine.py'?)"),
    ],
)
def test_unknown_names_get_the_nearest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text("def f(completion): return 3\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RewardError, match=re.escape(message)):
        resolve(name)
