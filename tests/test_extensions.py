"""Names of code become functions and classes, or an error that says the nearest name."""

import re
from pathlib import Path

import pytest

import groupwise
from groupwise.errors import ConfigError
from groupwise.extensions import extension, is_marked, load_object


def test_files_and_modules_are_found(tmp_path: Path) -> None:
    (tmp_path / "outside_one.py").write_text("class Mine: ...\ndef f(): return 3\n")
    assert load_object(f"{tmp_path / 'outside_one.py'}:f", what="x")() == 3
    assert load_object(f"{tmp_path / 'outside_one.py'}:Mine", what="x").__name__ == "Mine"
    assert load_object("groupwise.rewards.format:tags", what="x").__name__ == "tags"


def test_a_file_is_the_module_that_its_neighbours_import(tmp_path: Path) -> None:
    (tmp_path / "outside_base.py").write_text("class Mine: ...\n")
    (tmp_path / "outside_user.py").write_text("from outside_base import Mine\n")
    base = load_object(f"{tmp_path / 'outside_base.py'}:Mine", what="x")
    assert load_object(f"{tmp_path / 'outside_user.py'}:Mine", what="x") is base


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for number, name in enumerate(("a/outside_same.py", "b/outside_same.py", "json.py", "x.y.py")):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"def f(): return {number}\n")
        assert load_object(f"{file}:f", what="x")() == number


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_colon.py", "the setting 'no_colon.py' must look like file.py:name"),
        (":f", "must look like file.py:name or package.module:name"),
        ("FOLDER/mine.py:g h", "must look like"),
        ("FOLDER/mime.py:f", "there is no file FOLDER/mime.py (did you mean 'mine.py'?)"),
        ("FOLDER/mine.py:funktion", "no function or class 'funktion' (did you mean 'function'?)"),
        ("FOLDER/mine.py:number", "is an int, not a function or class"),
        ("FOLDER/broken.py:f", "importing FOLDER/broken.py raised SyntaxError"),
        ("FOLDER/needs.py:f", "raised ModuleNotFoundError: No module named 'package_not_there'"),
        ("FOLDER/leaves.py:f", "raised SystemExit: 7"),
        ("package_not_there.module:f", "there is no module 'package_not_there': install it"),
        ("groupwise.nothing:f", "there is no module 'groupwise.nothing'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, reference: str, message: str) -> None:
    (tmp_path / "mine.py").write_text("number = 3\ndef function(): ...\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "needs.py").write_text("import package_not_there\n")
    (tmp_path / "leaves.py").write_text("raise SystemExit(7)\n")
    folder = str(tmp_path.resolve())
    with pytest.raises(ConfigError, match=re.escape(message.replace("FOLDER", folder))):
        load_object(reference.replace("FOLDER", folder), what="the setting")


def test_marks_are_of_one_kind_and_leave_the_function_as_it_is() -> None:
    @groupwise.reward
    def short(completion: str) -> float:
        return -len(completion)

    @extension("surrogate")
    class Mine: ...

    assert short("ab") == -2
    assert is_marked(short, "reward") and not is_marked(short, "task")
    assert is_marked(Mine, "surrogate") and not is_marked(Mine, "reward")
    assert not is_marked(load_object("os:system", what="x"), "task")
