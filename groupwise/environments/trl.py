"""Environments as TRL's `environment_factory` has them, unchanged.

    class Counter:                              # made without arguments, one for each episode
        def reset(self, **row) -> str | None:   # the row's columns; text for the last user message
            self.count = 0
        def add(self, by: int) -> str:          # every public method is a tool
            ...
        def get_reward(self) -> float:          # optional: one more reward, of weight 1
            return float(self.count == 3)

With several factories by name, a row's column `environment` chooses. Reward functions that ask for
`environments` are given the object itself, where it lives.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.environments.base import (
    Environment,
    EnvironmentFactory,
    EnvironmentFailed,
    Reply,
    ToolSpec,
    Turn,
)
from groupwise.environments.calls import as_message
from groupwise.environments.tools import Function, answer, name_of, specs
from groupwise.errors import ConfigError, DataError, quoted
from groupwise.types import Problem

CHOOSES = "environment"
"""The column that names a row's environment."""

NOT_TOOLS = ("reset", "get_reward")
"""The verifier is no tool: a model that could call it would search for its answer."""

Make = Callable[[], Any]


class TrlEnvironment(Environment):
    """`functions` and `rewards` are those beside the instance's own."""

    def __init__(
        self,
        instance: Any,
        functions: Sequence[Function],
        tools: tuple[ToolSpec, ...],
        rewards: Sequence[Function] = (),
        choosing: bool = False,
    ) -> None:
        self.instance, self.rewards, self.choosing, self.tools = instance, rewards, choosing, tools
        named = [*functions, *tool_methods(instance)]
        self.functions = {name_of(function): function for function in named}
        self.messages: list[Mapping[str, Any]] = []

    async def reset(self, problem: Problem, seed: int) -> Reply:
        prompt = problem.prompt
        self.row = {
            **problem.columns,
            "prompt": prompt if isinstance(prompt, str) else [dict(m) for m in prompt],
        }
        if self.choosing:
            self.row.pop(CHOOSES, None)
        text = await _settled(self.instance.reset(**self.row))
        if text is None:
            return Reply()
        if not isinstance(text, str):
            raise EnvironmentFailed(f"returned {quoted(repr(text), 80)}, not text or None")
        return Reply(({"role": "user", "content": text},))

    async def step(self, turn: Turn) -> Reply:
        replies = tuple([await answer(call, self.functions) for call in turn.calls])
        self.messages += [as_message(turn), *replies]
        return Reply(replies, done=not turn.calls)

    async def score(self) -> Mapping[str, float | None]:
        scores: dict[str, float | None] = {}
        if hasattr(self.instance, "get_reward"):
            name = type(self.instance).__name__
            scores[name] = await _settled(self.instance.get_reward())
        for reward in self.rewards:
            columns = {name: [value] for name, value in self.row.items() if name != "prompt"}
            (scores[name_of(reward)],) = await _settled(
                reward(
                    prompts=[self.row["prompt"]],
                    completions=[self.messages],
                    environments=[self.instance],
                    **columns,
                )
            )
        return scores


@dataclass(frozen=True)
class _MakeTrl:
    """Of names and functions of modules, so that another process can make it too."""

    factories: Mapping[str | None, Make]
    functions: tuple[Function, ...]
    tools: Mapping[str | None, tuple[ToolSpec, ...]]
    rewards: tuple[Function, ...]

    def __call__(self, problem: Problem) -> TrlEnvironment:
        several = None not in self.factories
        name = problem.columns.get(CHOOSES) if several else None
        if name not in self.factories:
            raise DataError(
                f"problem {problem.id} has {CHOOSES}={name!r}, which is none of: "
                f"{', '.join(map(str, self.factories))}"
            )
        instance = self.factories[name]()
        return TrlEnvironment(instance, self.functions, self.tools[name], self.rewards, several)


def trl_environment(
    factory: Make | Mapping[str, Make],
    tools: Sequence[Function] = (),
    rewards: Sequence[Function] = (),
) -> EnvironmentFactory:
    """For `groupwise.train(config, environment=trl_environment(Counter))`.

    `rewards` are TRL's reward functions that ask for `environments`.
    """
    factories: dict[str | None, Make] = {}
    factories.update(factory if isinstance(factory, Mapping) else {None: factory})
    if not factories:
        raise ConfigError("a dict of environments needs at least one")
    instances = {name: _probed(make) for name, make in factories.items()}
    listed = {name: specs([*tools, *tool_methods(one)]) for name, one in instances.items()}
    make = _MakeTrl(factories, tuple(tools), listed, tuple(rewards))
    first, *others = instances
    named = CHOOSES if others else type(instances[first]).__name__
    scores = bool(rewards) or any(hasattr(one, "get_reward") for one in instances.values())
    return EnvironmentFactory(named, make, scores, listed[first])


def _probed(make: Make) -> Any:
    instance = make()
    if not callable(getattr(instance, "reset", None)):
        raise ConfigError(f"the environment {type(instance).__name__} has no method `reset`")
    return instance


def tool_methods(instance: Any) -> list[Function]:
    """Looked up on the class: on the instance, that would evaluate its properties."""
    methods = inspect.getmembers(type(instance), predicate=inspect.isfunction)
    return [
        getattr(instance, name)
        for name, _ in methods
        if not name.startswith("_") and name not in NOT_TOOLS
    ]


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
