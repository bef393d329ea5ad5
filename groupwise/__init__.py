"""groupwise: GRPO post-training for language models, from a laptop to a cluster.

    import groupwise
    result = groupwise.train("demo", steps=20)
    result.model, result.tokenizer, result.history

The steps of the loop can be called alone too: see `groupwise.training.loop`.
"""

from importlib import import_module

TYPE_CHECKING = False  # typing itself takes most of the time that the command needs to start
if TYPE_CHECKING:
    from groupwise.config import Config
    from groupwise.extensions import engine, environment, optimizer, reward, task, tool, tracker
    from groupwise.recipe import load_recipe
    from groupwise.report.compare import compare_runs
    from groupwise.rewards.base import Reward
    from groupwise.tasks.base import Task
    from groupwise.tasks.rows import data_task
    from groupwise.training.api import train
    from groupwise.training.callbacks import Callback, Event
    from groupwise.training.result import Result
    from groupwise.types import Completion, Group, Problem

__version__ = "0.1.0"

_MODULES = {
    "groupwise.config": ("Config",),
    "groupwise.extensions": (
        "engine", "environment", "optimizer", "reward", "task", "tool", "tracker",
    ),
    "groupwise.recipe": ("load_recipe",),
    "groupwise.report.compare": ("compare_runs",),
    "groupwise.rewards.base": ("Reward",),
    "groupwise.tasks.base": ("Task",),
    "groupwise.tasks.rows": ("data_task",),
    "groupwise.training.api": ("train",),
    "groupwise.training.callbacks": ("Callback", "Event"),
    "groupwise.training.result": ("Result",),
    "groupwise.types": ("Completion", "Group", "Problem"),
}  # fmt: skip
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Callback",
    "Completion",
    "Config",
    "Event",
    "Group",
    "Problem",
    "Result",
    "Reward",
    "Task",
    "compare_runs",
    "data_task",
    "engine",
    "environment",
    "load_recipe",
    "optimizer",
    "reward",
    "task",
    "tool",
    "tracker",
    "train",
]


if not TYPE_CHECKING:  # a type checker that sees it believes in every name

    def __getattr__(name: str) -> object:
        """Load on first use: reading a config must not cost the import of torch."""
        if name not in _HOME:
            raise AttributeError(f"module 'groupwise' has no attribute {name!r}")
        import warnings

        with warnings.catch_warnings():  # tqdm's, in a notebook: our panel needs no widgets
            warnings.filterwarnings("ignore", "IProgress not found")
            return getattr(import_module(_HOME[name]), name)

    def __dir__() -> list[str]:
        """For completion in notebooks and shells."""
        return [*__all__, "__version__"]
