"""From settings to an environment."""

import logging
from collections.abc import Callable
from typing import Any

from groupwise.config import Config, InFlight
from groupwise.config.environment import (
    AgentEnvironment,
    AnyEnvironment,
    CodeBlocksEnvironment,
    EnvironmentSettings,
    GuessNumberEnvironment,
    HasIsolation,
    McpEnvironmentSettings,
    NoEnvironment,
    OpenEnvSettings,
    OwnEnvironment,
    ReasoningGymEnvironmentSettings,
    ToolsEnvironment,
    TrlEnvironmentSettings,
    VerifiersEnvironmentSettings,
)
from groupwise.environments.agent import agent_environment
from groupwise.environments.base import EnvironmentFactory
from groupwise.environments.calculator import calculate
from groupwise.environments.code_blocks import code_blocks_environment
from groupwise.environments.episode import EpisodeLimits
from groupwise.environments.groups import Episodes
from groupwise.environments.guess_number import GuessNumber
from groupwise.environments.mcp import mcp_environment
from groupwise.environments.openenv import openenv_environment
from groupwise.environments.processes import in_processes
from groupwise.environments.python_tool import python
from groupwise.environments.reasoning_gym import reasoning_gym_environment
from groupwise.environments.tools import tools_environment
from groupwise.environments.trl import trl_environment
from groupwise.environments.verifiers import verifiers_environment
from groupwise.errors import ConfigError, quoted
from groupwise.extensions import load_object
from groupwise.objective.advantages.group import GroupAdvantage
from groupwise.policy.policy import Policy
from groupwise.rewards.sandbox.ways import check_isolation
from groupwise.secrets import check_whole

log = logging.getLogger("groupwise")

TOOLS: dict[str, Callable[..., Any]] = {"calculate": calculate, "python": python}
"""Functions of ours that a recipe may name."""


def find_environment(settings: AnyEnvironment) -> EnvironmentFactory | None:
    """None where an answer is one turn. Imports the code that the settings name."""
    if isinstance(settings, NoEnvironment):
        return None
    check_whole(settings.model_dump(), "environment")
    return ENVIRONMENTS[type(settings)](settings)


def _tools(settings: ToolsEnvironment) -> EnvironmentFactory:
    return tools_environment([find_tool(name) for name in settings.functions])


def _trl(settings: TrlEnvironmentSettings) -> EnvironmentFactory:
    tools = [load_object(name, what="environment.tools") for name in settings.tools]
    rewards = [load_object(name, what="environment.rewards") for name in settings.rewards]
    if settings.factory:
        factory = load_object(settings.factory, what="environment.factory")
        return trl_environment(factory, tools, rewards)
    factories = {
        name: load_object(reference, what=f"environment.factories.{name}")
        for name, reference in settings.factories.items()
    }
    return trl_environment(factories, tools, rewards)


def _own(settings: OwnEnvironment) -> EnvironmentFactory:
    make = load_object(settings.kind, what="environment.kind")
    return EnvironmentFactory(make.__name__, make)


def _agent(settings: AgentEnvironment) -> EnvironmentFactory:
    override = settings.override_sampling
    if settings.command:
        return agent_environment(settings.command, override_sampling=override)
    function = load_object(settings.function, what="environment.function")
    return agent_environment(function, override_sampling=override)


ENVIRONMENTS: dict[type[EnvironmentSettings], Callable[[Any], EnvironmentFactory]] = {
    ToolsEnvironment: _tools,
    CodeBlocksEnvironment: lambda settings: code_blocks_environment(),
    TrlEnvironmentSettings: _trl,
    McpEnvironmentSettings: lambda settings: mcp_environment(settings.command, settings.shared),
    OpenEnvSettings: lambda settings: openenv_environment(settings.url, settings.show),
    ReasoningGymEnvironmentSettings: lambda settings: reasoning_gym_environment(settings.feedback),
    VerifiersEnvironmentSettings: lambda settings: verifiers_environment(
        settings.env, settings.args, settings.python
    ),
    GuessNumberEnvironment: lambda settings: EnvironmentFactory(
        settings.kind, GuessNumber, scores=False, isolate=False, thread="sampling"
    ),
    AgentEnvironment: _agent,
    OwnEnvironment: _own,
}
"""A kind of environment is a class of settings, and what makes an environment from them."""


def find_tool(name: str) -> Callable[..., Any]:
    """One of ours, or the user's own as file.py:function."""
    if ":" in name:
        return load_object(name, what="environment.functions")
    if name not in TOOLS:
        known = ", ".join(TOOLS)
        raise ConfigError(
            f"environment.functions: there is no tool {quoted(name, 60)}; ours are: {known}, and "
            "one of yours is file.py:function"
        )
    if TOOLS[name] is python:
        check_isolation()  # complains now rather than in every call
    return TOOLS[name]


def check_turn_rewards(config: Config, ranks: int) -> None:
    """Refuse credit by turn where what it needs is not known."""
    if config.environment.turn_weight is None:
        return
    if isinstance(config.timing, InFlight):
        raise ConfigError(
            "environment.turn_rewards cannot work with timing.kind=in_flight, which leaves out "
            "tokens by weights that are too old: use timing.kind=in_turn or ahead, or leave "
            "turn_rewards out"
        )
    advantage = config.algorithm.advantage
    if ranks > 1 and isinstance(advantage, GroupAdvantage) and advantage.scale == "batch":
        raise ConfigError(
            "environment.turn_rewards cannot work with algorithm.scale=batch over several "
            "processes: use algorithm.scale=group or none, or leave turn_rewards out"
        )


def make_episodes(factory: EnvironmentFactory, config: Config, policy: Policy) -> Episodes:
    """With the recipe's limits; the defaults where the environment was passed from Python."""
    given = config.environment
    settings = EnvironmentSettings() if isinstance(given, NoEnvironment) else given
    if not factory.scores and settings.reward_weight != 1.0:
        raise ConfigError(
            f"environment.weight: {factory.name} gives no reward of its own. Leave weight out"
        )
    limits = EpisodeLimits(
        max_tokens=config.rollout.max_completion_tokens,
        max_turns=settings.max_turns,
        max_reply_tokens=settings.max_reply_tokens,
        max_prompt_tokens=config.rollout.max_prompt_tokens,
        step_seconds=settings.step_seconds,
        episode_seconds=settings.episode_seconds,
    )
    in_threads = isinstance(settings, HasIsolation) and settings.isolation == "thread"
    isolated = factory.isolate and not in_threads
    episodes = Episodes(
        in_processes(factory) if isolated else factory,
        policy.tokenizer,
        policy.eos_ids,
        limits,
        weight=settings.reward_weight,
        at_once=settings.at_once,
        max_open=settings.max_open,
        in_rounds=settings.in_rounds,
        chat=settings.chat,
    )
    for kind, why in episodes.prove().items():
        if why is not None:
            log.info("episodes split where the chat template rewrites them: %s, %s", kind, why)
    return episodes
