"""Environments of verifiers' first API (`verifiers.legacy` of 0.3, the whole of earlier ones)."""

import asyncio
import functools
import importlib.util
import inspect
import json
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import verifiers as vf
from verifiers.utils.logging_utils import LOGGER_NAME as LOGGER
from verifiers.utils.message_utils import normalize_messages
from vf_episodes import Ask, Ended, Message

__all__ = ["LOGGER", "load"]


async def load(env: str, args: dict[str, Any]) -> "LegacyEnvironment":
    """`alphabet-sort` is an installed package, `file.py:load_environment` a function."""
    if ":" not in env:
        return LegacyEnvironment(vf.load_environment(env, **args))
    source, _, name = env.rpartition(":")
    return LegacyEnvironment(getattr(_module(source), name)(**args))


class LegacyEnvironment:
    def __init__(self, environment: Any) -> None:
        if not isinstance(environment, vf.Environment):
            raise TypeError(f"it returned a {type(environment).__name__}, not a vf.Environment")
        if environment.rubric.has_group_rewards:
            raise TypeError(
                "its rubric scores the rollouts of a group together, and groupwise scores each "
                "episode alone"
            )
        self.environment = environment
        self._datasets: dict[str, Any] = {
            "train": environment.build_dataset(),
            "eval": environment.build_eval_dataset(),
        }
        for part in getattr(environment, "envs", [environment]):
            _unblock(part)

    @property
    def description(self) -> dict[str, Any]:
        sizes = {split: len(rows or ()) for split, rows in self._datasets.items()}
        return {"sizes": sizes, "tools": _tools(self.environment.tool_defs or [])}

    def rows(self, split: str, first: int, count: int) -> list[Any]:
        last = min(first + count, len(self._datasets[split]))
        return [self.row(split, index) for index in range(first, last)]

    def row(self, split: str, index: int) -> Any:
        return self._datasets[split][index]

    async def rollout(self, row: Any, ask: Ask) -> Any:
        row = {"example_id": 0, **row}
        return await self.environment.rollout(row, LegacyClient(ask), "groupwise", {})

    def last_words(self, state: Any) -> list[Message]:
        final = state.get("final_env_response") or []
        return as_plain(normalize_messages(final))

    async def score(self, state: Any) -> dict[str, Any]:
        error = state.get("error")
        if error is not None:
            raise error
        rubric = self.environment.rubric
        state["timing"].scoring.start = time.time()
        await rubric.score_rollout(state)
        state["timing"].scoring.end = time.time()
        await rubric.cleanup(state)
        return {"reward": state["reward"], "metrics": state["metrics"]}


class LegacyClient(vf.Client):
    """A client whose answers are sampled by the parent process."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(None)
        self.ask = ask

    async def get_response(self, prompt: Any, *_: Any, tools: Any = None, **__: Any) -> Any:
        try:
            message = await self.ask(as_plain(prompt), _tools(tools or []))
        except Ended:
            raise vf.OverlongPromptError("the limit on turns or tokens is reached") from None
        calls = [
            vf.ToolCall(
                id=call["id"],
                name=call["function"]["name"],
                arguments=json.dumps(call["function"]["arguments"]),
            )
            for call in message.get("tool_calls", ())
        ]
        cut = message.get("cut", False)
        said = vf.ResponseMessage(
            content=message["content"],
            tool_calls=calls or None,
            finish_reason="length" if cut else "tool_calls" if calls else "stop",
            is_truncated=cut,
        )
        return vf.Response(id=uuid.uuid4().hex, created=0, model="groupwise", message=said)

    def setup_client(self, config: Any) -> Any: ...
    async def to_native_tool(self, tool: Any) -> Any: ...
    async def to_native_prompt(self, messages: Any) -> Any: ...
    async def get_native_response(self, *args: Any, **kwargs: Any) -> Any: ...
    async def raise_from_native_response(self, response: Any) -> None: ...
    async def from_native_response(self, response: Any) -> Any: ...
    async def close(self) -> None: ...


def as_plain(messages: Any) -> list[Message]:
    """As OpenAI writes them, with text as content; a tool's message has the tool's name."""
    plain: list[Message] = []
    names: dict[str, str] = {}
    for message in messages:
        said: Message = {"role": message.role, "content": _text(message.content)}
        for call in getattr(message, "tool_calls", None) or ():
            names[call.id] = call.name
            function = {"name": call.name, "arguments": _arguments(call.arguments)}
            said.setdefault("tool_calls", []).append(
                {"id": call.id, "type": "function", "function": function}
            )
        if message.role == "tool":
            said["tool_call_id"] = message.tool_call_id
            said["name"] = names.get(message.tool_call_id, "tool")
        plain.append(said)
    return plain


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # of an example in a prompt: shown as it is
        return text


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part if isinstance(part, dict) else part.model_dump() for part in content]
    kinds = {part.get("type") for part in parts} - {"text"}
    if kinds:
        raise TypeError(f"messages with {', '.join(map(str, kinds))} cannot be shown to the model")
    return "".join(part["text"] for part in parts)


def _tools(tools: Any) -> list[Message]:
    return [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in tools
    ]


def _unblock(environment: Any) -> None:
    """Tools that are plain functions run in threads: a slow one must not stop other episodes."""

    def threaded(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(function, *args, **kwargs)

        return call

    tools = getattr(environment, "tool_map", {})
    for name, function in list(tools.items()):
        if inspect.isfunction(function) and not inspect.iscoroutinefunction(function):
            tools[name] = threaded(function)


def _module(source: str) -> Any:
    if not source.endswith(".py"):
        return importlib.import_module(source)
    file = Path(source).expanduser().resolve()
    sys.path.append(str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module
