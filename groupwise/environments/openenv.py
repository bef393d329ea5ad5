"""OpenEnv servers: environments behind a WebSocket, one session for each episode.

    environment: {kind: openenv, url: "http://127.0.0.1:8000"}

The schema of the server's actions says what the model's turn becomes. An action of one text is the
turn's text. Where the server has MCP tools, the model calls these. Any other action is a tool whose
parameters are the schema. This speaks the servers' protocol itself: their package is not needed.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from groupwise.environments.base import (
    Environment,
    EnvironmentBusy,
    EnvironmentFactory,
    EnvironmentFailed,
    Reply,
    ToolCall,
    ToolSpec,
    Turn,
)
from groupwise.environments.calls import refusal, tool_message
from groupwise.errors import ConfigError, MissingExtraError, quoted
from groupwise.secrets import masked
from groupwise.types import Problem

CONNECT_SECONDS = 30.0
MOST_BYTES = 16 * 2**20
"""Of one message. The server is not ours."""
PATIENCE_SECONDS = 300.0
"""How long others may have all sessions of the server."""
NOT_SHOWN = ("done", "reward", "metadata")
TOLD = ("VALIDATION_ERROR", "EXECUTION_ERROR")
"""Errors of an action: the model is told, and may do better. Others end the episode."""


@dataclass(frozen=True)
class Actions:
    """What the model's turns become: a text in `field`, or calls of `tools`."""

    field: str = ""
    tools: tuple[ToolSpec, ...] = ()
    mcp: bool = False
    """Whether the tools are MCP tools of the server, behind one action."""


class ServerSessions:
    """How many sessions the server allows, which it tells when there are too many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open, self._most = 0, 10**9
        self._busy_since: float | None = None

    @contextlib.asynccontextmanager
    async def queue(self) -> AsyncIterator[None]:
        while not self._take():
            await asyncio.sleep(0.02)
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1

    def _take(self) -> bool:
        with self._lock:
            free = self._open < self._most
            self._open += free
            return free

    def refused(self, most: int) -> None:
        """Raises EnvironmentBusy; EnvironmentFailed where others have held all for long."""
        with self._lock:
            self._most = max(1, min(self._most, most))
            self._busy_since = self._busy_since or time.monotonic()
            if time.monotonic() - self._busy_since > PATIENCE_SECONDS:
                raise EnvironmentFailed("found no free session: others use all of the server's")
        raise EnvironmentBusy

    def accepted(self) -> None:
        self._busy_since = None


class OpenEnvironment(Environment):
    def __init__(
        self, url: str, actions: Actions, sessions: ServerSessions, show: Sequence[str] = ()
    ) -> None:
        self._url, self._actions, self._sessions = url, actions, sessions
        self._show = tuple(show)
        self.tools = actions.tools
        self._socket: Any = None

    async def reset(self, problem: Problem, seed: int) -> Reply:
        self._socket = await _connected(self._url)
        row = {name: value for name, value in problem.columns.items() if _is_plain(value)}
        result = await self._ask("reset", {**row, "seed": seed})
        self._sessions.accepted()
        text = _shown(result.get("observation"), self._show)
        return Reply(({"role": "user", "content": text},) if text else ())

    async def step(self, turn: Turn) -> Reply:
        if self._actions.field:
            return await self._act({self._actions.field: turn.text}, {"role": "user"})
        replies: list[Reply] = []
        for call in turn.calls:
            replies.append(await self._call(call))
            if replies[-1].done:
                break
        rewards = [reply.reward for reply in replies if reply.reward is not None]
        messages = tuple(message for reply in replies for message in reply.messages)
        done = not turn.calls or replies[-1].done
        return Reply(messages, sum(rewards) if rewards else None, done)

    async def close(self) -> None:
        if self._socket is None:
            return
        with contextlib.suppress(Exception):  # it may be gone
            await self._socket.send('{"type": "close"}')
        await self._socket.close()

    async def _call(self, call: ToolCall) -> Reply:
        refused = refusal(call, [tool.name for tool in self.tools])
        if refused:
            return Reply((tool_message(call, refused),))
        arguments = dict(call.arguments)
        if self._actions.mcp:
            arguments = {"type": "call_tool", "tool_name": call.name, "arguments": arguments}
        return await self._act(arguments, tool_message(call, ""))

    async def _act(self, action: dict[str, Any], message: dict[str, str]) -> Reply:
        try:
            result = await self._ask("step", action)
        except ActionRefused as error:
            return Reply(({**message, "content": masked(f"error: {error}")},))
        text = _shown(result.get("observation"), self._show)
        return Reply(({**message, "content": text},), result.get("reward"), result.get("done"))  # pyright: ignore[reportArgumentType]

    async def _ask(self, kind: str, data: dict[str, Any]) -> Mapping[str, Any]:
        reply = await _exchanged(self._socket, {"type": kind, "data": data})
        content = reply.get("data")
        if not isinstance(content, Mapping):
            raise EnvironmentFailed(f"got the message {quoted(str(reply), 100)} of the server")
        if reply.get("type") != "error":
            return content
        code, said = str(content.get("code")), str(content.get("message"))
        if code == "CAPACITY_REACHED":
            most = content.get("max_sessions")
            self._sessions.refused(most if isinstance(most, int) else 1)
        if code in TOLD and kind == "step":
            raise ActionRefused(_reasons(content) or said)
        raise EnvironmentFailed(f"got the error {code} from the server: {quoted(said)}")


class ActionRefused(Exception):
    """The server does not take this action."""


def openenv_environment(url: str, show: Sequence[str] = ()) -> EnvironmentFactory:
    """For `groupwise.train(config, environment=openenv_environment("http://127.0.0.1:8000"))`.

    `show` names the fields of an observation that the model sees; without it, all.
    """
    try:
        import websockets  # noqa: F401
    except ImportError:
        raise MissingExtraError("websockets", "openenv") from None
    actions, sessions = find_actions(url), ServerSessions()
    return EnvironmentFactory(
        "openenv",
        lambda problem: OpenEnvironment(url, actions, sessions, show),
        tools=actions.tools,
        isolate=False,
        queue=sessions.queue,
        thread="shared",
    )


def find_actions(url: str) -> Actions:
    """From the schema of the server's actions; from its list of tools where it has MCP tools."""
    try:
        answer = httpx2.get(f"{url}/schema", timeout=CONNECT_SECONDS)
        answer.raise_for_status()
        schema = answer.json()["action"]
        fields = {n: s for n, s in schema.get("properties", {}).items() if n != "metadata"}
    except (httpx2.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"environment.url={url}: no OpenEnv server answers there ({type(error).__name__}: "
            f"{quoted(str(error))}). Start it first, or correct the address"
        ) from error
    if {"tool_name", "arguments"} <= set(fields):
        return Actions(tools=asyncio.run(_mcp_tools(url)), mcp=True)
    if len(fields) == 1 and next(iter(fields.values())).get("type") == "string":
        return Actions(field=next(iter(fields)))
    required = [name for name in schema.get("required", ()) if name in fields]
    parameters = {**schema, "properties": fields, "required": required}
    parameters.pop("additionalProperties", None)
    name = str(schema.get("title", "act"))
    return Actions(tools=(ToolSpec(name, schema.get("description", ""), parameters),))


async def _mcp_tools(url: str) -> tuple[ToolSpec, ...]:
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    try:
        socket = await _connected(url)
        try:
            reply = await _exchanged(socket, {"type": "mcp", "data": request})
        finally:
            await socket.close()
        tools = reply["data"]["result"]["tools"]
        return tuple(
            ToolSpec(t["name"], t.get("description") or "", t.get("inputSchema") or {})
            for t in tools
        )
    except (EnvironmentFailed, KeyError, TypeError) as error:
        raise ConfigError(f"environment.url={url}: its tools cannot be listed ({error})") from error


async def _connected(url: str) -> Any:
    from websockets.asyncio.client import connect

    address = "ws" + url.removeprefix("http") + "/ws"
    try:
        # No pings: a server that computes is not gone. Our own limits of time hold.
        return await connect(
            address,
            open_timeout=CONNECT_SECONDS,
            close_timeout=1.0,
            ping_interval=None,
            max_size=MOST_BYTES,
            proxy=None,
        )
    except Exception as error:
        said = f"{type(error).__name__}: {quoted(str(error))}"
        raise EnvironmentFailed(f"cannot connect to {address} ({said})") from error


async def _exchanged(socket: Any, message: dict[str, Any]) -> dict[str, Any]:
    from websockets.exceptions import ConnectionClosed

    try:
        # A server that refuses a session says so and closes: what it said can still be read.
        with contextlib.suppress(ConnectionClosed):
            await socket.send(json.dumps(message))
        reply = json.loads(await socket.recv())
    except ConnectionClosed as error:
        raise EnvironmentFailed(f"lost the connection to the server ({error})") from error
    except (ValueError, RecursionError) as error:
        raise EnvironmentFailed(f"got a message that is not JSON ({error})") from error
    if not isinstance(reply, dict):
        raise EnvironmentFailed(f"got the message {quoted(str(reply), 100)} of the server")
    return reply


def _shown(observation: Any, show: Sequence[str]) -> str:
    """One text as it is; else the fields as JSON, without those that are empty."""
    if not isinstance(observation, Mapping):
        return "" if observation is None else str(observation)
    fields = {
        name: value
        for name, value in observation.items()
        if (name in show if show else name not in NOT_SHOWN) and value not in (None, "", [], {})
    }
    if not fields:
        return ""
    (first, *others) = fields.values()
    return first if isinstance(first, str) and not others else json.dumps(fields)


def _reasons(content: Mapping[str, Any]) -> str:
    """What was wrong with an action, field by field, as pydantic lists it."""
    with contextlib.suppress(KeyError, TypeError):
        return "; ".join(
            f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in content["errors"]
        )
    return ""


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
