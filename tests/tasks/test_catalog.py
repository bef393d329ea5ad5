import subprocess
import sys
import typing
from pathlib import Path

import pytest

from groupwise.config.tasks import AnyTask, ArithmeticTask, CountdownTask, JsonlTask, PythonTask
from groupwise.errors import ConfigError, DataError
from groupwise.tasks.catalog import TASKS, build_task

OWN_TASK = """
from groupwise.tasks.base import Task
from groupwise.types import Problem

def right(completion, answer):
    return completion == answer

def not_empty(completion):
    return bool(completion)

def doubles(count=3):
    made = [Problem(str(i), f"2*{i}=", {"answer": str(2 * i)}) for i in range(count)]
    return Task("doubles", made, right, validation=made[:1], test=made[:1], formatted=not_empty)

def nothing():
    return 7

def breaks():
    raise KeyError("lost")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typing.Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "own_doubles_task.py"
    path.write_text(OWN_TASK)
    yield path
    sys.modules.pop("own_doubles_task", None)


def test_every_kind_of_the_config_has_its_line() -> None:
    union = typing.get_args(AnyTask)[0]

    assert list(TASKS) == [member.model_fields["kind"].default for member in typing.get_args(union)]


def test_a_task_is_built_from_its_settings(tmp_path: Path) -> None:
    task = build_task(ArithmeticTask(train_size=5, test_size=2))

    assert (task.name, len(task.train), len(task.test)) == ("arithmetic", 5, 2)
    with pytest.raises(DataError):
        build_task(JsonlTask(path=str(tmp_path / "none.jsonl")))


def test_judges_are_imported_without_the_settings() -> None:
    """Every run starts worker processes that import them: pydantic would triple that time."""
    code = (
        "import sys, groupwise.rewards.worker, groupwise.rewards.arithmetic;"
        "import groupwise.answers.choices, groupwise.rewards.countdown, groupwise.rewards.gym;"
        "import groupwise.tasks.gsm8k_forms;"
        "heavy = {'torch', 'pydantic', 'datasets', 'numpy', 'sympy'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    judges = [
        build_task(kind(train_size=5, test_size=2)) for kind in (ArithmeticTask, CountdownTask)
    ]
    assert {j.correct.__module__ for j in judges if j.correct} == {
        "groupwise.rewards.arithmetic",
        "groupwise.rewards.countdown",
    }


def test_a_function_of_the_users_own_is_called_with_its_options(file: Path) -> None:
    task = build_task(PythonTask(path=f"{file}:doubles", options={"count": 5}))

    assert [p.columns["answer"] for p in task.train] == ["0", "2", "4", "6", "8"]
    assert task.correct is not None and task.correct("8", "8")
    assert build_task(PythonTask(path="own_doubles_task:doubles")).train == task.train[:3]


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("nothing", {}, r"must return a groupwise\.tasks\.base\.Task, not an int"),
        ("double", {}, r"no function or class 'double' \(did you mean 'doubles'\?\)"),
        ("breaks", {}, r"failed with KeyError: 'lost' \(.*own_doubles_task\.py, line 19\)"),
        ("doubles", {"size": 3}, r"failed with TypeError.*size"),
        ("doubles", {"count": 0}, r"no training problems"),
    ],
)
def test_what_is_wrong_with_a_users_function_is_said(
    file: Path, function: str, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_task(PythonTask(path=f"{file}:{function}", options=options))


def test_what_is_wrong_with_a_users_path_is_said(file: Path) -> None:
    for path, message in {
        "no_colon.py": "must look like file.py:name",
        f"{file.parent / 'gone.py'}:task": "there is no file .*gone.py",
        "groupwise_gone.tasks:task": "no module 'groupwise_gone'",
    }.items():
        with pytest.raises(ConfigError, match=message):
            build_task(PythonTask(path=path))
