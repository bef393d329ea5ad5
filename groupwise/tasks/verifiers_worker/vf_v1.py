"""Environments of verifiers' second API (0.4): tasksets, whose agents run behind its interception.

An agent's program asks verifiers' interception server on loopback for completions, and that server
asks a client. Here the client is ours, so the turns are sampled by the parent process.
"""

import contextlib
import json
import os
import sys
import uuid
from itertools import islice
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.clients import Client, TrainClientConfig
from verifiers.v1.clients.train import serialize_completion
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.errors import ProviderError
from verifiers.v1.interception import server
from verifiers.v1.types import AssistantMessage, Response, ToolCall, Usage
from verifiers.v1.utils.loaders import load_environment, resolve_env_config
from vf_episodes import Ask, Ended, Message

LOGGER = "verifiers"
MOST_TASKS = 1_000_000
OURS: dict[str, Any] = {}
"""By the address in its settings: the client of each episode that runs."""

theirs = server.resolve_client
server.resolve_client = lambda config: OURS.get(config.base_url) or theirs(config)


async def load(env: str, args: dict[str, Any]) -> "V1Environment":
    """`env` is a taskset's id, or the folder of its package; `args` is the block [env]."""
    if "/" in env and Path(env).is_dir():
        parent = str(Path(env).resolve().parent)
        sys.path.append(parent)
        # Tool servers are started as `python -m PACKAGE.MODULE`, and must find the package too:
        # verifiers would wait three minutes for the port of one that could not start.
        known = [path for path in (os.environ.get("PYTHONPATH"), parent) if path]
        os.environ["PYTHONPATH"] = os.pathsep.join(known)
        env = Path(env).name
    config = resolve_env_config({**args, "taskset": {**args.get("taskset", {}), "id": env}})
    environment = V1Environment(load_environment(config))
    await environment.stack.enter_async_context(environment.environment.serving())
    return environment


class V1Environment:
    def __init__(self, environment: Any) -> None:
        self.environment, self.stack = environment, contextlib.AsyncExitStack()
        self.tasks = list(islice(environment.taskset, MOST_TASKS))

    @property
    def description(self) -> dict[str, Any]:
        return {"sizes": {"train": len(self.tasks), "eval": 0}, "tools": []}

    def rows(self, split: str, first: int, count: int) -> list[Any]:
        return [_row(task.data) for task in self.tasks[first : first + count]]

    def row(self, split: str, index: int) -> Any:
        return self.tasks[index]

    async def rollout(self, row: Any, ask: Ask) -> Any:
        client = V1Client(ask)
        config = TrainClientConfig(base_url=f"http://{uuid.uuid4().hex}", api_key_var="NONE")
        OURS[config.base_url] = client
        try:
            context = vf.ModelContext(model="groupwise", client=config)
            return await self.environment.run_episode(
                row, context, on_trace=lambda trace: client.traces.update({trace.id: trace})
            )
        finally:
            del OURS[config.base_url]

    def last_words(self, state: Any) -> list[Message]:
        return []

    async def score(self, state: Any) -> dict[str, Any]:
        errors = [*state.errors, *(error for trace in state.traces for error in trace.errors)]
        if errors:
            raise RuntimeError(f"{errors[0].type}: {errors[0].message}")
        return {"reward": sum(trace.reward for trace in state.traces), "metrics": {}}


class V1Client(Client):
    """A client whose answers are sampled by the parent process."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.traces: dict[str, Any] = {}

    async def get_response(
        self,
        dialect: Any,
        body: Any,
        sampling: Any,
        session_id: Any = None,
        turn: Any = None,
        headers: Any = None,
    ) -> Any:
        request = dialect.parse_request(body) if turn is None else turn
        prompt = request.messages if turn is None else request.prompt
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in request.tools or ()
        ]
        try:
            message = await self.ask([_plain(m) for m in prompt], tools)
        except Ended:
            if session_id in self.traces:
                self.traces[session_id].stop("groupwise_limit")
            raise ProviderError("no further turns or tokens", status_code=400) from None
        calls = [
            ToolCall(
                id=call["id"],
                name=call["function"]["name"],
                arguments=json.dumps(call["function"]["arguments"]),
            )
            for call in message.get("tool_calls", ())
        ]
        cut = message.get("cut", False)
        response = Response(
            id=uuid.uuid4().hex,
            created=0,
            model="groupwise",
            message=AssistantMessage(content=message["content"], tool_calls=calls or None),
            finish_reason="length" if cut else "tool_calls" if calls else "stop",
            usage=Usage(prompt_tokens=0, completion_tokens=0),
        )
        response.raw = serialize_completion(response, "groupwise")
        return response


def _plain(message: Any) -> Message:
    said = message_to_wire(message)
    content = said.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part["text"] for part in content)
    said["content"] = content
    for call in said.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return {key: value for key, value in said.items() if value is not None}


def _row(data: Any) -> dict[str, Any]:
    row = data.model_dump(mode="json")
    prompt = row.get("prompt") or ""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if row.get("system_prompt"):
        messages = [{"role": "system", "content": row["system_prompt"]}, *messages]
    return {**row, "prompt": messages}
