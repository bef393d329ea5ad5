"""groupwise: GRPO post-training for language models, from a laptop to a cluster.

    import groupwise
    config = groupwise.load_recipe("demo", ["steps=20"])
    result = groupwise.train(config)
    result.model

The steps of the loop can be called alone too: see `groupwise.training.loop`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groupwise.config import Config
    from groupwise.extensions import engine, optimizer, reward, task, tracker
    from groupwise.recipe import load_recipe
    from groupwise.rewards.base import Reward
    from groupwise.tasks.base import Task
    from groupwise.training.api import Result, train
    from groupwise.types import Completion, Group, Problem

__version__ = "0.1.0"

_HOME = {
    "Config": "groupwise.config",
    "load_recipe": "groupwise.recipe",
    "reward": "groupwise.extensions",
    "engine": "groupwise.extensions",
    "optimizer": "groupwise.extensions",
    "task": "groupwise.extensions",
    "tracker": "groupwise.extensions",
    "Reward": "groupwise.rewards.base",
    "Task": "groupwise.tasks.base",
    "Result": "groupwise.training.api",
    "train": "groupwise.training.api",
    "Completion": "groupwise.types",
    "Group": "groupwise.types",
    "Problem": "groupwise.types",
}

__all__ = [
    "Completion",
    "Config",
    "Group",
    "Problem",
    "Result",
    "Reward",
    "Task",
    "engine",
    "load_recipe",
    "optimizer",
    "reward",
    "task",
    "tracker",
    "train",
]


if not TYPE_CHECKING:  # a type checker that sees it believes in every name

    def __getattr__(name: str) -> Any:
        """Load on first use: reading a config must not cost the import of torch."""
        if name not in _HOME:
            raise AttributeError(f"module 'groupwise' has no attribute {name!r}")
        return getattr(import_module(_HOME[name]), name)
