"""The problems of an environment of verifiers, and the process that holds it.

Its dataset is `train`; its eval dataset is split into `validation` and `test`, row by row. Where it
has none, one row in ten goes from its dataset to each, by a hash of the row.

The environment runs in a process of its own, with an interpreter that has verifiers: verifiers and
its environments want versions of packages that a training run may not have.
"""

import json
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from groupwise.config.tasks import VerifiersTask
from groupwise.errors import ConfigError, DataError
from groupwise.tasks.base import Split, Task, split_of
from groupwise.tasks.json_lines_process import JsonLinesProcess, ProcessFailed
from groupwise.types import Problem, Prompt

WORKER = Path(__file__).parent / "verifiers_worker"
INSTALL = (
    "install it in an environment of its own (python3 -m venv .venv-verifiers; "
    ".venv-verifiers/bin/pip install verifiers==0.3.1) and set "
    "environment.python=.venv-verifiers/bin/python"
)
PAGE = 1000
"""Rows of a dataset that are asked for at once."""
MOST_ROWS = 1_000_000


def build(settings: VerifiersTask) -> Task:
    return verifiers_task(
        settings.env,
        settings.args,
        settings.python,
        train_size=settings.train_size,
        test_size=settings.test_size,
    )


def verifiers_task(
    env: str,
    args: Mapping[str, Any] | None = None,
    python: str | None = None,
    *,
    train_size: int | None = None,
    test_size: int = 200,
) -> Task:
    """The task of `groupwise.environments.verifiers.verifiers_environment(env, args, python)`."""
    worker, described = start_environment(env, args, python)
    held_out = 0 if described["sizes"]["eval"] else 2 * test_size
    limit = (train_size or MOST_ROWS) + held_out
    rows = {
        "train": _rows(env, worker, "train", min(limit, described["sizes"]["train"])),
        "eval": _rows(env, worker, "eval", min(2 * test_size, described["sizes"]["eval"])),
    }
    problems = _splits(env, rows["train"], rows["eval"])
    return Task(
        name_of(env),
        problems["train"][:train_size],
        None,  # rubrics judge whole conversations, in the environment
        validation=problems["validation"][:test_size],
        test=problems["test"][:test_size],
    )


def start_environment(
    env: str, args: Mapping[str, Any] | None, python: str | None
) -> tuple[JsonLinesProcess, dict[str, Any]]:
    """The process that holds the environment, and what it says of it: one for all who ask."""
    return _started(env, json.dumps(dict(args or {}), sort_keys=True), python or sys.executable)


def name_of(env: str) -> str:
    """alphabet-sort for `primeintellect/alphabet-sort` and for `alphabet-sort.py:load`."""
    return Path(env.rpartition(":")[0] if ":" in env else env).name.removesuffix(".py")


@lru_cache(8)
def _started(env: str, args: str, python: str) -> tuple[JsonLinesProcess, dict[str, Any]]:
    load = {"env": env, "args": json.loads(args)}
    worker = JsonLinesProcess((python, str(WORKER)), ("load", load))
    try:
        return worker, worker.ask("describe")
    except OSError as error:
        raise ConfigError(f"environment.python={python} cannot be run: {error.strerror}") from None
    except ProcessFailed as error:
        if "No module named 'verifiers'" in str(error):
            raise ConfigError(f"{python} has no package verifiers: {INSTALL}") from None
        raise ConfigError(f"environment.env={env} cannot be loaded: {error}") from None


def _rows(env: str, worker: JsonLinesProcess, split: str, size: int) -> list[Problem]:
    rows: list[Any] = []
    try:
        while len(rows) < size:
            count = min(PAGE, size - len(rows))
            rows += worker.ask("rows", split=split, first=len(rows), count=count)
    except ProcessFailed as error:
        raise DataError(f"the problems of {env} cannot be read: {error}") from None
    return [_problem(env, split, index, row) for index, row in enumerate(rows)]


def _problem(env: str, split: str, index: int, row: Mapping[str, Any]) -> Problem:
    columns = {name: value for name, value in row.items() if name != "prompt"}
    # The process takes its own row by this, with whatever JSON cannot say.
    columns["verifiers"] = {"split": split, "index": index}
    where = f"row {index} of {env}'s {split} dataset"
    return Problem(f"{name_of(env)}/{split}/{index}", _prompt(row.get("prompt"), where), columns)


def _prompt(given: Any, where: str) -> Prompt:
    if isinstance(given, str):
        return given
    messages = [m for m in given if isinstance(m, Mapping)] if isinstance(given, list) else []
    if not messages or not all(isinstance(m.get("content"), str) for m in messages):
        raise DataError(f"the prompt of {where} is no conversation of texts")
    return tuple({"role": str(m.get("role")), "content": m["content"]} for m in messages)


def _splits(env: str, train: list[Problem], held_out: list[Problem]) -> dict[Split, list[Problem]]:
    splits: dict[Split, list[Problem]] = {"train": [], "validation": [], "test": []}
    if held_out:
        return {"train": train, "validation": held_out[::2], "test": held_out[1::2] or held_out}
    for problem in train:
        splits[split_of(_key(problem))].append(problem)
    if not all(splits.values()):
        if len(train) < 3:
            raise DataError(f"{env} has {len(train)} rows, too few to hold any out: it needs 3")
        return {"train": train[2:], "validation": train[:1], "test": train[1:2]}
    return splits


def _key(problem: Problem) -> str:
    """Equal rows stay together; where they are counted says nothing about them."""
    counted = ("verifiers", "example_id")
    row = {name: value for name, value in problem.columns.items() if name not in counted}
    return json.dumps([problem.prompt, row], sort_keys=True, default=str)
