"""`tools` and `environment_factory` as one environment of ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from groupwise.environments.base import EnvironmentFactory
from groupwise.environments.tools import tools_environment
from groupwise.environments.trl import CHOOSES, tool_methods, trl_environment
from groupwise.errors import ConfigError, DataError
from groupwise.trl.config import GRPOConfig
from groupwise.types import Problem

MANY_TURNS = 1000
"""Where max_tool_calling_iterations sets no limit; max_completion_length ends an episode first."""


@dataclass(frozen=True)
class Environments:
    factory: EnvironmentFactory | None = None
    factories: Any = None
    """`environment_factory` as it was given."""
    settings: Mapping[str, Any] | None = None
    """For config.yaml."""
    reward_names: list[str] = field(default_factory=list)
    """Classes whose `get_reward` is a reward."""
    functions: list[Callable[..., Any]] = field(default_factory=list)

    @classmethod
    def of(
        cls, factories: Any, tools: Sequence[Callable[..., Any]], args: GRPOConfig
    ) -> "Environments":
        if factories is None and not tools:
            return cls()
        turns, limit = args.max_tool_calling_iterations, args.max_completion_length or 1
        limits = {
            "max_turns": MANY_TURNS if turns is None else turns + 1,
            "max_reply_tokens": limit,
        }
        named = [_place(tool) for tool in tools]
        if factories is None:
            settings = {"kind": "tools", "functions": named, **limits}
            return cls(tools_environment(tools), None, settings, [], list(tools))
        made = list(factories.values()) if isinstance(factories, Mapping) else [factories]
        instances = [make() for make in made]
        for instance in instances:
            if not callable(getattr(instance, "reset", None)):
                raise ConfigError(
                    f"each environment must define a callable `reset`: {type(instance).__name__} "
                    "has none"
                )
        classes = dict.fromkeys(type(i) for i in instances if hasattr(i, "get_reward"))
        functions = [*tools, *(f for instance in instances for f in tool_methods(instance))]
        settings = {"kind": "trl", "factory": _place(made[0]), "tools": named, **limits}
        factory = trl_environment(factories, tools)
        return cls(factory, factories, settings, [c.__name__ for c in classes], functions)

    def check(self, problems: Sequence[Problem]) -> None:
        """Where there are several, each problem must name one of them."""
        if not isinstance(self.factories, Mapping):
            return
        for problem in problems:
            name = problem.columns.get(CHOOSES)
            if name not in self.factories:
                raise DataError(
                    f"row {problem.id}: {CHOOSES}={name!r} is not among the environments that were "
                    f"given: {', '.join(map(str, self.factories))}"
                )


def _place(function: Any) -> str:
    """Where it is, for people who read config.yaml: it is not loaded from there."""
    module = getattr(function, "__module__", None) or "__main__"
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{module}:{name.split('.')[-1]}"
