"""Tools of an MCP server, which is a program that is spoken to over its standard input and output.

    environment: {kind: mcp, command: [python, my_server.py]}

Its tools are listed once, at the start. A turn without a call ends the episode. By default each
episode has a server of its own, so that what one does cannot be seen in another.
"""

import asyncio
import contextlib
import json
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.environments.base import (
    Environment,
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

START_SECONDS = 60.0
STOP_SECONDS = 10.0
MOST_PAGES = 100
"""Of the list of tools: a server that always names a next one must not hold up the start."""


class McpSession:
    """A server's process and the connection to it, in a thread with an event loop of its own.

    The SDK wants a connection to be opened and closed by one task. Calls come from other threads.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._loop = asyncio.new_event_loop()
        self._started: asyncio.Future[Any] = self._loop.create_future()
        self._stop, self._closed = asyncio.Event(), False
        self._why = "lost the MCP server: it was ended"
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._thread = threading.Thread(target=self._run, name="MCP server", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return self._closed or not self._thread.is_alive()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return await self._there(self._call(name, dict(arguments)))

    async def tools(self) -> tuple[ToolSpec, ...]:
        return await self._there(self._list())

    def close(self, wait: bool = False) -> None:
        """Ask the server to end. It is killed if it does not."""
        self._closed = True  # at once: who takes a server next is not given this one
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        if wait:
            self._thread.join(STOP_SECONDS)

    async def _there(self, work: Any) -> Any:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise EnvironmentFailed(self._why) from None
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # it is us who are not to wait any longer
                raise
            raise EnvironmentFailed(self._why) from None

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        client = await asyncio.shield(self._started)
        return await client.call_tool(name, arguments)

    async def _list(self) -> tuple[ToolSpec, ...]:
        client = await asyncio.shield(self._started)
        specs, cursor = [], None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            specs += [ToolSpec(t.name, t.description or "", t.input_schema) for t in page.tools]
            cursor = page.next_cursor
            if not cursor:
                break
        return tuple(specs)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._connected())
        finally:
            self._log.close()

    async def _connected(self) -> None:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        program, *arguments = self._command
        server = stdio_client(
            StdioServerParameters(command=program, args=arguments), errlog=self._log
        )
        try:
            async with Client(server) as client:
                self._started.set_result(client)
                await self._stop.wait()
        except BaseException as error:
            if not self._started.done():
                self._why = f"does not start: {_root(error)}. {self._last_words()}".strip()
                self._started.cancel()

    def _last_words(self) -> str:
        """What the server said last on its standard error."""
        self._log.seek(0)
        lines = self._log.read()[-2000:].strip().splitlines()
        return masked(f"It said: {quoted(lines[-1])}") if lines else ""


class McpServers:
    """One for each episode, or one for all: then it is started again where it has ended."""

    def __init__(self, command: Sequence[str], shared: bool) -> None:
        self._command, self._shared = command, shared
        self._lock = threading.Lock()
        self._sessions: set[McpSession] = set()

    def take(self) -> McpSession:
        with self._lock:
            self._sessions = {session for session in self._sessions if not session.ended}
            if self._shared and self._sessions:
                return next(iter(self._sessions))
            session = McpSession(self._command)
            self._sessions.add(session)
            return session

    def give_back(self, session: McpSession) -> None:
        if not self._shared:
            session.close()

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        for session in self._sessions:
            session.close(wait=True)


class McpEnvironment(Environment):
    def __init__(self, servers: McpServers, tools: tuple[ToolSpec, ...]) -> None:
        self._servers, self.tools = servers, tools
        self._session: McpSession | None = None

    async def reset(self, problem: Problem, seed: int) -> Reply:
        self._session = self._servers.take()
        await self._session.tools()  # it has started
        return Reply()

    async def step(self, turn: Turn) -> Reply:
        answers = [tool_message(call, await self._result(call)) for call in turn.calls]
        return Reply(tuple(answers), done=not turn.calls)

    async def close(self) -> None:
        if self._session is not None:
            self._servers.give_back(self._session)

    async def _result(self, call: ToolCall) -> str:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        assert self._session is not None
        if refused := refusal(call, [tool.name for tool in self.tools]):
            return refused
        try:
            result = await self._session.call(call.name, call.arguments)
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                return masked(f"error: {error}")
            self._session.close()
            raise EnvironmentFailed("lost the MCP server: it has ended") from None
        except asyncio.CancelledError:  # not in time: a server that hangs is replaced
            self._session.close()
            raise
        text = "\n".join(_text(part) for part in result.content)
        return masked(f"error: {text}") if result.is_error else text


def mcp_environment(command: Sequence[str], shared: bool = False) -> EnvironmentFactory:
    """For `groupwise.train(config, environment=mcp_environment(["python", "my_server.py"]))`."""
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise MissingExtraError("mcp", "mcp") from None
    servers = McpServers(command, shared)
    tools = _listed(command)
    return EnvironmentFactory(
        "mcp",
        lambda problem: McpEnvironment(servers, tools),
        scores=False,
        tools=tools,
        isolate=False,
        thread="shared",
        close=servers.close,
    )


def _listed(command: Sequence[str]) -> tuple[ToolSpec, ...]:
    """What a server of this kind offers: asked of one that is closed again."""
    session = McpSession(command)

    async def ask() -> tuple[ToolSpec, ...]:
        return await asyncio.wait_for(session.tools(), START_SECONDS)

    said = " ".join(command)
    try:
        tools = asyncio.run(ask())
    except (EnvironmentFailed, TimeoutError) as error:
        why = error if isinstance(error, EnvironmentFailed) else f"is silent for {START_SECONDS} s"
        raise ConfigError(f"the MCP server of environment.command ({said}) {why}") from None
    finally:
        session.close()
    if not tools:
        raise ConfigError(f"the MCP server of environment.command ({said}) offers no tools")
    return tools


def _text(part: Any) -> str:
    text = getattr(part, "text", None)
    if isinstance(text, str):
        return text
    text = getattr(getattr(part, "resource", None), "text", None)
    if isinstance(text, str):
        return text
    return json.dumps({"type": getattr(part, "type", "unknown"), "note": "not shown as text"})


def _root(error: BaseException) -> str:
    """The SDK's task groups wrap what went wrong."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
