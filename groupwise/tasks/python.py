"""A task from a function of the user's own: `file.py:function` or `package.module:function`.

A file is imported under its own name with its folder on the import path, so that it can import
its neighbours and a worker process can find its judges again.
"""

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from groupwise.config import PythonTask
from groupwise.errors import ConfigError, GroupwiseError
from groupwise.tasks.base import Task


def build(settings: PythonTask) -> Task:
    task = _run(settings.path, lambda: find_function(settings.path)(**settings.options))
    if not isinstance(task, Task):
        raise ConfigError(
            f"task.path={settings.path}: the function must return a groupwise.tasks.base.Task, "
            f"not a {type(task).__name__}"
        )
    if not task.train:
        raise ConfigError(f"task.path={settings.path}: the task has no training problems")
    return task


def find_function(path: str) -> Callable[..., Any]:
    source, found, name = path.rpartition(":")
    if not found or not source or not name:
        raise ConfigError(
            f"task.path={path!r} must look like file.py:function or package.module:function"
        )
    module = _module_of_file(Path(source)) if source.endswith(".py") else _module(source)
    function = getattr(module, name, None)
    if not callable(function):
        there = ", ".join(n for n, v in vars(module).items() if _defined_in(v, module))
        raise ConfigError(
            f"task.path={path}: {source} has no function {name!r}; it has: {there or 'none'}"
        )
    return function


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"task.path: no module {error.name!r} to import; install it, or name the file itself: "
            "path/to/file.py:function"
        ) from error


def _module_of_file(file: Path) -> ModuleType:
    file = file.expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"task.path: the file {file} does not exist")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # last, so that it hides no module of anyone else
    module = _module(file.stem)
    if Path(module.__file__ or "").resolve() != file:
        raise ConfigError(
            f"task.path: rename {file.name}, since {file.stem} is already the name of another "
            f"module ({module.__file__ or 'a built-in one'})"
        )
    return module


def _defined_in(value: Any, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _run(path: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except GroupwiseError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"task.path={path} failed with {type(error).__name__}: {error} "
            f"({last.filename}, line {last.lineno})"
        ) from error
