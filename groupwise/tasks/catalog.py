"""Every kind of task: a new one is a file with `build(settings) -> Task` and one line here.

Modules are named, not imported, so that a run loads only the task that it uses.
"""

import importlib

from groupwise.config.tasks import AnyTask
from groupwise.secrets import check_whole
from groupwise.tasks.base import Task

TASKS = {
    "arithmetic": "groupwise.tasks.arithmetic",
    "countdown": "groupwise.tasks.countdown",
    "guess_number": "groupwise.tasks.guess_number",
    "gsm8k": "groupwise.tasks.gsm8k",
    "aqua_rat": "groupwise.tasks.choices",
    "mathqa": "groupwise.tasks.choices",
    "math": "groupwise.tasks.math",
    "gym": "groupwise.tasks.gym",
    "jsonl": "groupwise.tasks.jsonl",
    "hub": "groupwise.tasks.hub",
    "environment": "groupwise.tasks.environment",
    "python": "groupwise.tasks.python",
    "verifiers": "groupwise.tasks.verifiers",
}
"""`task.kind` -> the module whose `build` makes it."""


def build_task(settings: AnyTask) -> Task:
    """build_task(ArithmeticTask(digits=1)): all its problems and its judges."""
    check_whole(settings.model_dump(), "task")
    return importlib.import_module(TASKS[settings.kind]).build(settings)
