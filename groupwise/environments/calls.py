"""Tool calls in what a model wrote, in Hermes' form: <tool_call>{"name": ..., ...}</tool_call>

A call that cannot be read is a call with an `error`, which the model is told. Nothing here raises.
A parser of another form is a function of the same type.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from groupwise.environments.base import ToolCall, ToolSpec, Turn
from groupwise.errors import quoted
from groupwise.types import StopReason

ParseTurn = Callable[[str, StopReason], Turn]
"""From the text of a turn, special tokens included and the last one left out, to the turn."""

THINKING_ENDS = "</think>"
MOST_CALLS = 64
"""More in one turn are not read: each costs a reply."""

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)


def parse_hermes(text: str, stop: StopReason) -> Turn:
    """Calls inside of what the model thought are thoughts: only what follows is read."""
    thoughts, mark, answer = text.rpartition(THINKING_ENDS)
    calls: list[ToolCall] = []

    def read(match: re.Match[str]) -> str:
        """What stays in the text: a call that cannot be read, so that the record has it."""
        if len(calls) == MOST_CALLS:
            return match.group(0)
        calls.append(_read(call_id(len(calls)), match.group(1), closed=bool(match.group(2))))
        return match.group(0) if calls[-1].error else ""

    rest = _CALL.sub(read, answer)
    return Turn(f"{thoughts}{mark}{rest}".strip(), tuple(calls), stop)


def call_id(number: int) -> str:
    """Nine letters and digits, which is what Mistral's templates insist on."""
    return f"call{number:05d}"


def describe_tools(tools: tuple[ToolSpec, ...]) -> str:
    """For models whose chat template does not show tools: what they can call, and how."""
    schemas = "\n".join(json.dumps(tool.schema) for tool in tools)
    return (
        "You may call functions. Their signatures are within <tools></tools>:\n"
        f"<tools>\n{schemas}\n</tools>\n"
        "For each call write a JSON object with the function's name and arguments:\n"
        '<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>'
    )


def as_message(turn: Turn) -> dict[str, Any]:
    """The turn as an assistant's message, as TRL and OpenAI write it."""
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": dict(call.arguments)},
        }
        for call in turn.calls
        if not call.error
    ]
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    return message | ({"tool_calls": calls} if calls else {})


def refusal(call: ToolCall, names: Collection[str]) -> str:
    """Why a call cannot be made, for the model to read; empty where it can."""
    error = call.error
    if not error and call.name not in names:
        error = f"there is no tool {quoted(call.name, 60)}; there are: {', '.join(names)}"
    return f"error: {error}" if error else ""


def tool_message(call: ToolCall, content: str) -> dict[str, str]:
    """What a call is answered with."""
    return {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content}


def _read(id: str, body: str, *, closed: bool) -> ToolCall:
    if not closed:
        return ToolCall(id, "", error="the call does not end with </tool_call>")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        return ToolCall(id, "", error=f"the call is not valid JSON: {why}")
    if not isinstance(data, Mapping):
        return ToolCall(id, "", error=f"the call must be a JSON object, not {quoted(body, 60)}")
    name, arguments = data.get("name"), data.get("arguments", {})
    if not isinstance(name, str) or not name:
        return ToolCall(id, "", error='the call has no "name"')
    if isinstance(arguments, str):  # some models write the object as text once more
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ToolCall(id, name, error='"arguments" is not valid JSON')
    if not isinstance(arguments, Mapping):
        return ToolCall(id, name, error='"arguments" must be a JSON object of names and values')
    return ToolCall(id, name, dict(arguments))
