"""`tools` and `environment_factory` as one environment of ours.

Instances live in the script's process and are used again, as in TRL: a rollout takes those that are
free, resets them, and reward functions get them as `environments`. Their code runs in the thread
that samples, one call at a time; `GRPOConfig(groupwise={"environment.isolation": "thread"})` gives
each episode a thread of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.environments.base import EnvironmentFactory, Reply, Thread, ToolSpec, Turn
from groupwise.environments.tools import ToolEnvironment, specs
from groupwise.environments.trl import CHOOSES, TrlEnvironment, tool_methods
from groupwise.errors import ConfigError, DataError
from groupwise.trl.config import GRPOConfig, as_dict
from groupwise.types import Episode, Group, Problem

MANY_TURNS = 1000
"""Where max_tool_calling_iterations sets no limit; max_completion_length ends an episode first."""

Tool = Callable[..., Any]


class _Tools(ToolEnvironment):
    async def step(self, turn: Turn) -> Reply:
        return Reply(done=True) if _is_malformed(turn) else await super().step(turn)


class _Environment(TrlEnvironment):
    async def step(self, turn: Turn) -> Reply:
        return Reply(done=True) if _is_malformed(turn) else await super().step(turn)

    async def score(self) -> Mapping[str, float | None]:
        """Nothing: rewards are called when all answers of a rollout are there."""
        return {}


def _is_malformed(turn: Turn) -> bool:
    """A call that cannot be read is text to TRL, and so the end of the answer."""
    return any(call.error for call in turn.calls)


class Pool:
    """Instances by the name of their factory (None where there is one alone)."""

    def __init__(
        self, factories: Mapping[str | None, Callable[[], Any]], tools: Sequence[Tool]
    ) -> None:
        if not factories:
            raise ConfigError("environment_factory={}: a dict of environments needs at least one")
        self.factories, self.shared = factories, tuple(tools)
        self.free = {name: [_checked(make())] for name, make in factories.items()}
        self.tools = {name: tool_methods(free[0]) for name, free in self.free.items()}
        self.specs: dict[str | None, tuple[ToolSpec, ...]] = {
            name: specs([*self.shared, *methods]) for name, methods in self.tools.items()
        }
        self.environments: list[Any] = []
        """Of the last rollout, in the order of its scored answers."""
        self._taken: dict[int, str | None] = {}
        self._ended: list[tuple[Episode, Any]] = []

    def make(self, problem: Problem) -> TrlEnvironment:
        name = problem.columns.get(CHOOSES) if None not in self.factories else None
        free = self.free[name]
        instance = free.pop() if free else _checked(self.factories[name]())
        self._taken[id(instance)] = name
        return _Environment(instance, self.shared, self.specs[name], choosing=name is not None)

    def ended(self, episode: Episode, environment: TrlEnvironment | None) -> None:
        if environment is not None:
            self._ended.append((episode, environment.instance))

    def take_back(self) -> None:
        """A rollout begins: what the last one used is free again, but for what failed."""
        for episode, instance in self._ended:
            if not episode.error:
                self.free[self._taken[id(instance)]].append(instance)
        self._ended, self._taken = [], {}

    def find(self, groups: Sequence[Group]) -> None:
        """A rollout is sampled: which environment each answer had."""
        instances = {id(episode): instance for episode, instance in self._ended}
        answers = [c for group in groups for c in group.completions if c.scored]
        self.environments = [instances[id(c.episode)] for c in answers]

    @property
    def rewards(self) -> list[Callable[..., Any]]:
        """One for each class that has a method `get_reward`."""
        kinds = dict.fromkeys(type(free[0]) for free in self.free.values())
        return [_own_reward(kind) for kind in kinds if hasattr(kind, "get_reward")]


def _own_reward(kind: type) -> Callable[..., list[float | None]]:
    def reward(environments: Sequence[Any], **_: Any) -> list[float | None]:
        return [each.get_reward() if type(each) is kind else None for each in environments]

    reward.__name__ = kind.__name__
    return reward


def _checked(instance: Any) -> Any:
    if not callable(getattr(instance, "reset", None)):
        raise ConfigError(
            f"each environment must define a callable `reset`: {type(instance).__name__} has none"
        )
    return instance


@dataclass(frozen=True)
class EnvironmentArguments:
    factory: EnvironmentFactory | None = None
    factories: Any = None
    """`environment_factory` as it was given."""
    settings: Mapping[str, Any] | None = None
    """For config.yaml."""
    pool: Pool | None = None
    functions: Sequence[Tool] = ()
    """All that a model may call."""

    @classmethod
    def of(cls, factories: Any, tools: Sequence[Tool], args: GRPOConfig) -> "EnvironmentArguments":
        if factories is None and not tools:
            return cls()
        turns, limit = args.max_tool_calling_iterations, args.max_completion_length or 1
        own = as_dict(args.groupwise)
        settings: dict[str, Any] = {
            "max_turns": MANY_TURNS if turns is None else turns + 1,
            "max_reply_tokens": limit,
            # `generate` takes a batch at a time: its rows are those that want a turn
            "in_rounds": own.get("engine.kind") == "transformers",
        }
        named = [_place(tool) for tool in tools]
        thread: Thread = "own" if own.get("environment.isolation") == "thread" else "sampling"
        if factories is None:
            settings = {"kind": "tools", "functions": named, **settings}
            listed = specs(tools)
            made = EnvironmentFactory(
                "tools",
                lambda problem: _Tools(tools, listed),
                scores=False,
                tools=listed,
                isolate=False,
                thread=thread,
            )
            return cls(made, None, settings, None, list(tools))
        several = isinstance(factories, Mapping)
        pool = Pool(dict(factories) if several else {None: factories}, tools)
        first = next(iter(pool.factories.values()))
        settings = {"kind": "trl", "factory": _place(first), "tools": named, **settings}
        made = EnvironmentFactory(
            CHOOSES,
            pool.make,
            scores=False,
            tools=next(iter(pool.specs.values())),
            isolate=False,
            thread=thread,
            ended=pool.ended,
        )
        functions = [*tools, *(tool for methods in pool.tools.values() for tool in methods)]
        return cls(made, factories, settings, pool, functions)

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
