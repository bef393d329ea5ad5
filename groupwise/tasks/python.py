"""A task from a function of the user's own: `file.py:function` or `package.module:function`."""

import traceback

from groupwise.config.tasks import PythonTask
from groupwise.errors import ConfigError, GroupwiseError, type_name
from groupwise.extensions import load_object
from groupwise.tasks.base import Task


def build(settings: PythonTask) -> Task:
    function = load_object(settings.path, what="task.path")
    try:
        task = function(**settings.options)
    except GroupwiseError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(
            f"task.path={settings.path} failed with {type(error).__name__}: {error} "
            f"({last.filename}, line {last.lineno})"
        ) from error
    if not isinstance(task, Task):
        raise ConfigError(
            f"task.path={settings.path}: the function must return a groupwise.tasks.base.Task, "
            f"not {type_name(task)}"
        )
    if not task.train:
        raise ConfigError(f"task.path={settings.path}: the task has no training problems")
    return task
