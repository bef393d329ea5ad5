"""Plain Python functions as tools: typed, documented, sync or async.

    def add(a: int, b: int) -> int:
        \"\"\"Adds two integers.

        Args:
            a: The first.
            b: The second.
        \"\"\"
        return a + b

What goes wrong in a call (an unknown name, arguments that do not fit, an exception) is told to the
model as the tool's answer, so that it can do better.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from groupwise.environments.base import (
    ChatMessage,
    Environment,
    EnvironmentFactory,
    Reply,
    ToolCall,
    ToolSpec,
    Turn,
)
from groupwise.environments.calls import refusal, tool_message
from groupwise.errors import ConfigError
from groupwise.secrets import masked
from groupwise.types import Problem

Function = Callable[..., Any]


class ToolEnvironment(Environment):
    """The model calls tools as long as it likes; a turn without a call is its answer."""

    def __init__(self, functions: Sequence[Function], tools: tuple[ToolSpec, ...]) -> None:
        self.functions = {name_of(function): function for function in functions}
        self.tools = tools

    async def step(self, turn: Turn) -> Reply:
        replies = [await answer(call, self.functions) for call in turn.calls]
        return Reply(tuple(replies), done=not turn.calls)


def tools_environment(functions: Sequence[Function]) -> EnvironmentFactory:
    """For `groupwise.train(config, environment=tools_environment([add]))`."""
    if not functions:
        raise ConfigError("an environment of tools needs at least one function")
    tools = specs(functions)  # complains now rather than in the first episode
    make = partial(_make, tuple(functions), tools)
    return EnvironmentFactory("tools", make, scores=False, tools=tools)


def _make(
    functions: tuple[Function, ...], tools: tuple[ToolSpec, ...], problem: Problem
) -> ToolEnvironment:
    """Of a module, not of a function, so that another process can make it too."""
    return ToolEnvironment(functions, tools)


def specs(functions: Sequence[Function]) -> tuple[ToolSpec, ...]:
    """What chat templates show of the functions, from their signatures and docstrings."""
    names = [name_of(function) for function in functions]
    if len(set(names)) < len(names):
        raise ConfigError(f"each tool needs a name of its own, not {names}")
    return tuple(_spec(function) for function in functions)


def name_of(function: Function) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _spec(function: Function) -> ToolSpec:
    from transformers.utils import get_json_schema

    try:
        schema = get_json_schema(function)["function"]
    except Exception as error:  # of several kinds, by what is missing
        raise ConfigError(
            f"the tool {name_of(function)} does not say what it takes ({error}). Give every "
            "argument a type, and the docstring a line `name: what it is` for each under `Args:`"
        ) from error
    return ToolSpec(schema["name"], schema.get("description", ""), schema["parameters"])


async def answer(call: ToolCall, functions: Mapping[str, Function]) -> ChatMessage:
    """The message that a call is answered with."""
    refused = refusal(call, functions)
    return tool_message(call, refused or await _result(call, functions[call.name]))


async def _result(call: ToolCall, function: Function) -> str:
    try:
        returned = function(**call.arguments)
        return as_text(await returned if inspect.isawaitable(returned) else returned)
    except Exception as error:
        return masked(f"error: {type(error).__name__}: {error}")


def as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list | tuple | bool) or value is None:
        try:
            return json.dumps(value)
        except (TypeError, ValueError):
            return str(value)
    return str(value)
