"""What a recipe or a folder names as code runs only when the user says so, in every command."""

import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping

import pytest
import yaml
from typer.testing import CliRunner, Result

from groupwise.cli.main import app
from groupwise.config.code import named_code
from groupwise.errors import ConfigError
from groupwise.recipe import load_recipe, parse, read_config
from groupwise.training.api import train
from runs import SMALL, small_config

OWN = """
import pathlib
import groupwise
from groupwise.tasks.base import Task
from groupwise.types import Problem

pathlib.Path({ran!r}).touch()

def right(completion, answer):
    return completion == answer

def not_empty(completion):
    return bool(completion)

@groupwise.task
def doubles(count=12):
    made = [Problem(str(i), f"What is {{i}}+{{i}}?", {{"answer": "0"}}) for i in range(count)]
    return Task("doubles", made, right, validation=made[:4], test=made[:4])

@groupwise.reward
def short(completion):
    return -len(completion) / 100

def unmarked(completion):
    return 0.5
"""


@pytest.fixture
def ran(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file that is there once the code has run."""
    return tmp_path / "ran"


@pytest.fixture
def own(tmp_path: pathlib.Path, ran: pathlib.Path) -> pathlib.Path:
    file = tmp_path / "own_code.py"
    file.write_text(OWN.format(ran=str(ran)))
    return file


@pytest.fixture(params=["a shell command", "a task", "a reward"])
def named(
    request: pytest.FixtureRequest, own: pathlib.Path, ran: pathlib.Path
) -> dict[str, object]:
    """Settings that name code, in three ways."""
    shell = {"kind": "python", "path": "os:system", "options": {"command": f"touch {ran}"}}
    return {
        "a shell command": {"task": shell},
        "a task": {"task": {"kind": "python", "path": f"{own}:doubles"}},
        "a reward": {"rewards": ["correct", f"{own}:short"]},
    }[request.param]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("outside") / "run"
    return train(small_config("steps=2"), folder, quiet=True).folder


@pytest.fixture
def folder(
    finished: pathlib.Path, tmp_path: pathlib.Path, named: dict[str, object]
) -> pathlib.Path:
    """A run folder whose config.yaml somebody has changed."""
    copy = shutil.copytree(finished, tmp_path / "run")
    (copy / "config.yaml").write_text(yaml.safe_dump({**SMALL, **named}))
    return copy


@pytest.fixture
def recipe(tmp_path: pathlib.Path, named: dict[str, object]) -> pathlib.Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **named}))
    return path


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def assert_refused(result: Result, file: pathlib.Path, ran: pathlib.Path) -> None:
    assert not ran.exists()
    assert isinstance(result.exception, ConfigError), result.output
    message = str(result.exception)
    assert str(file) in message and "--trust-code" in message and "trust_code=True" in message
    assert "task.path=" in message or "rewards.1.name=" in message


@pytest.mark.parametrize(
    "command",
    ["train", "check", "check --dry", "check --tiny", "doctor", "explain", "reward bench"],
)
def test_code_that_a_recipe_names_is_not_run(
    command: str, recipe: pathlib.Path, ran: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = ["--out", tmp_path / "out"] if command == "train" else []
    assert_refused(invoke(*command.split(), recipe, *out), recipe, ran)


@pytest.mark.parametrize(
    "command",
    [
        "eval RUN", "sample RUN", "sample RUN/model", "export RUN --to trl",
        "export RUN --to neuron", "reward fit RUN --out OUT", "reward eval tiny RUN",
        "reward pairs RUN --out OUT", "train RUN/config.yaml --out OUT",
    ],
)  # fmt: skip
def test_code_that_a_folder_names_is_not_run(
    command: str, folder: pathlib.Path, ran: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file = folder / "config.yaml"
    if command.endswith("/model"):
        file = (folder / "config.yaml").rename(folder / "model" / "config.yaml")
    words = command.replace("RUN", str(folder)).replace("OUT", str(tmp_path / "out")).split()
    assert_refused(invoke(*words), file, ran)


@pytest.mark.parametrize(
    "command",
    [
        "explain RUN --stored", "explain RUN", "replay RUN --set algorithm=dapo", "report RUN",
        "compare RUN", "export RUN --out OUT",
    ],
)  # fmt: skip
def test_commands_that_only_look_at_a_run_need_no_trust_and_run_nothing(
    command: str, folder: pathlib.Path, ran: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    words = command.replace("RUN", str(folder)).replace("OUT", str(tmp_path / "out")).split()
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    assert not ran.exists()


def test_the_viewer_runs_nothing(folder: pathlib.Path, ran: pathlib.Path) -> None:
    from groupwise.view.catalog import Run, run_id
    from groupwise.view.findings import FindingsLog
    from groupwise.view.settings import read_settings

    run = Run(run_id(folder), folder.name, folder)
    assert read_settings(run)["steps"] == SMALL["steps"]
    assert FindingsLog(run).extend()["rows"] == 2
    assert not ran.exists()


def test_import_and_score_read_no_settings_that_name_code(
    recipe: pathlib.Path, ran: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    invoke("import", recipe, "--out", tmp_path / "imported.yaml")
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps({"prompt": "a", "completion": "b"}))
    invoke("reward", "score", recipe.parent, answers, "--out", tmp_path / "scored.jsonl")
    assert not ran.exists()


def test_the_exit_code_is_2_and_the_message_stands_alone(tmp_path: pathlib.Path) -> None:
    recipe, ran = tmp_path / "recipe.yaml", tmp_path / "ran"
    shell = {"kind": "python", "path": "os:system", "options": {"command": f"touch {ran}"}}
    recipe.write_text(yaml.safe_dump({"task": shell}))
    command = [sys.executable, "-m", "groupwise", "check", str(recipe)]
    for flags in ([], ["--trust-code"]):
        done = subprocess.run([*command, *flags], capture_output=True, text=True, input="y\n" * 9)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ") and "task.path=os:system" in done.stderr
        assert "Traceback" not in done.stderr and not ran.exists()


def test_trust_takes_only_what_is_marked(own: pathlib.Path, tmp_path: pathlib.Path) -> None:
    recipe = tmp_path / "recipe.yaml"

    def read(settings: Mapping[str, object]) -> None:
        recipe.write_text(yaml.safe_dump(dict(settings)))
        load_recipe(str(recipe), trust_code=True)

    read({"rewards": [f"{own}:short"], "task": {"kind": "python", "path": f"{own}:doubles"}})
    for settings, kind in (
        ({"rewards": [f"{own}:unmarked"]}, "reward"),
        ({"rewards": [f"{own}:doubles"]}, "reward"),
        ({"rewards": ["subprocess:run"]}, "reward"),
        ({"task": {"kind": "python", "path": "os:system"}}, "task"),
        ({"task": {"kind": "python", "path": f"{own}:short"}}, "task"),
    ):
        with pytest.raises(ConfigError, match=f"is not marked as a {kind}.*@groupwise.{kind}"):
            read(settings)
    with pytest.raises(ConfigError, match=r"rewards\.0\.name .*no function or class 'shor' \(did"):
        read({"rewards": [f"{own}:shor"]})


def test_what_the_user_types_is_theirs(own: pathlib.Path, tmp_path: pathlib.Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"rewards": [f"{own}:unmarked"]}))
    typed = f"rewards=[correct, '{own}:unmarked']"
    assert len(load_recipe(str(recipe), [typed]).rewards) == 2
    assert len(load_recipe("demo", [typed]).rewards) == 2
    assert len(parse({"rewards": [f"{own}:unmarked"]}).rewards) == 1
    with pytest.raises(ConfigError, match=r"rewards\.0\.name"):
        load_recipe(str(recipe), [f"model={own}:unmarked"])  # typed, and as another thing
    load_recipe(str(recipe), [typed, "task.kind=python", f"task.path={own}:doubles"])


def test_a_typed_kind_does_not_let_the_files_function_in(tmp_path: pathlib.Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"task": {"path": "os:system"}}))
    with pytest.raises(ConfigError, match=r"task\.path=os:system"):
        load_recipe(str(recipe), ["task.kind=python"])


def test_code_in_presets_and_in_the_tiny_block_counts(tmp_path: pathlib.Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"presets": {"p": {"rewards": ["os:system"]}}}))
    load_recipe(str(recipe))
    with pytest.raises(ConfigError, match="os:system"):
        load_recipe(str(recipe), preset="p")
    recipe.write_text(yaml.safe_dump({"tiny": {"rewards": ["os:system"]}}))
    with pytest.raises(ConfigError, match="os:system"):
        load_recipe(str(recipe), tiny=True)


def test_a_reward_model_is_no_code_and_a_module_named_model_is() -> None:
    assert not list(named_code(parse({"rewards": ["correct", "model:rm"]})))
    task = {"kind": "python", "path": "model:build"}
    assert [str(code) for code in named_code(parse({"task": task}))] == ["task.path=model:build"]


def test_a_recipe_of_own_functions_trains_resumes_and_is_evaluated(
    own: pathlib.Path, ran: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "out"
    task = {"kind": "python", "path": f"{own}:doubles"}
    settings = {**SMALL, "task": task, "rewards": ["correct", f"{own}:short"], "steps": 1}
    recipe.write_text(yaml.safe_dump(settings))
    command = ["train", recipe, "--out", out, "--quiet", "--trust-code"]
    assert invoke(*command).exit_code == 0 and ran.exists()
    again = invoke(*command)
    assert again.exit_code == 0 and "finished" in again.output
    assert read_config(out / "config.yaml", trust_code=True).rewards[1].name == f"{own}:short"
    assert isinstance(invoke("eval", out).exception, ConfigError)
    assert invoke("eval", out, "--trust-code").exit_code == 0
    typed = [f"task.path={own}:doubles", f"rewards=[correct, '{own}:short']"]
    assert invoke("eval", out, *typed).exit_code == 0


def test_processes_of_the_same_run_are_trusted_as_it_is(
    own: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"rewards": [f"{own}:short"]}))
    started: list[list[str]] = []

    def launch(words: list[str], count: int) -> int:
        started.append(words)
        return 0

    monkeypatch.setattr("groupwise.distributed.launch.launch", launch)
    assert invoke("train", recipe, "--nproc", 2, "--trust-code").exit_code == 0
    assert "--trust-code" in started[0]
