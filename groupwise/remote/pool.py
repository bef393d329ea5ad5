"""A pool of servers: work goes to whichever is free.

A server that fails is left out for a while and its work goes to the others. When none is left the
run ends with a message, and the same command goes on later from the last checkpoint. Everything
here runs in `client_loop`, whose one thread needs no locks.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from groupwise.config import ReferenceSettings, Servers
from groupwise.errors import ModelError
from groupwise.remote.client import ServerClient, ServerUnavailable, token_from_environment
from groupwise.remote.local_servers import LocalServer
from groupwise.remote.payload import BadPayload

log = logging.getLogger("groupwise")

RETRY_SECONDS = 30.0
"""How long a server that failed is left out before it is tried again."""

AnyClient = TypeVar("AnyClient", bound=ServerClient)
State = TypeVar("State")
Result = TypeVar("Result")


@dataclass(eq=False)
class PooledServer(Generic[AnyClient, State]):
    """A server and its state, which is None until it was reached and while it is left out.

    `process`: set where we start the server, and start it again when it fails. `load`: how much of
    the work that was sent to it is not done.
    """

    name: str
    client: AnyClient
    process: LocalServer | None = None
    state: State | None = None
    load: int = 0
    retry_at: float = 0.0
    reason: str = ""
    returning: "asyncio.Task[None] | None" = None


def pooled(
    client: type[AnyClient],
    settings: ReferenceSettings | Servers,
    setting: str,
    token: str | None = None,
) -> list[PooledServer[AnyClient, Any]]:
    """A server for each address. `setting` asked for them: a missing token's error names it."""
    token = token or token_from_environment(settings.token_env, setting, client.command)
    rest = (token, settings.token_env, settings.timeout)
    return [PooledServer(url, client(url, *rest)) for url in (u.rstrip("/") for u in settings.urls)]


def from_last_checkpoint(text: str) -> ModelError:
    return ModelError(f"{text}: it goes on from the last checkpoint")


class ServerPool(Generic[AnyClient, State]):
    """`connect(client)` makes a server ready and gives its state.

    `kind` is what messages call a server, `fix` how to get one when none is left, and `error` what
    is raised then. `max_load` is how much work a server has at once. `max_failures`, of each server
    for one piece of work: work that fails everywhere ends the run.
    """

    def __init__(
        self,
        servers: Iterable[PooledServer[AnyClient, State]],
        connect: Callable[[AnyClient], Awaitable[State]],
        kind: str,
        fix: str,
        error: Callable[[str], ModelError] = from_last_checkpoint,
        *,
        max_load: int = sys.maxsize,
        max_failures: int = 3,
    ) -> None:
        self.servers = list(servers)
        self.connect, self.kind, self.fix, self.error = connect, kind, fix, error
        self.max_load, self.max_failures = max_load, max_failures
        self.closed = False
        self._changed = asyncio.Event()

    async def connect_all(self) -> None:
        """Here a wrong token or model ends the run; later on it does not."""

        async def one(server: PooledServer[AnyClient, State]) -> None:
            try:
                server.state = await self._reach(server)
            except (ServerUnavailable, BadPayload) as error:
                self._leave_out(server, str(error))

        await _all(one(server) for server in self.servers)
        if not self._working():
            raise self._none_left()

    async def do(
        self,
        work: Callable[[AnyClient, State], Awaitable[Result]],
        *,
        load: int = 1,
        apart: set[PooledServer[AnyClient, State]] | None = None,
    ) -> Result:
        """The result of `work` at the server that has least to do, or at another if that fails.

        Work that is given the same set `apart` is never at one server at the same time.
        """
        failures, apart = 0, set() if apart is None else apart
        while True:
            server, state = await self._take(load, apart)
            apart.add(server)
            try:
                return await work(server.client, state)
            except (ServerUnavailable, BadPayload) as error:
                failures += 1
                if server.state is state:  # else it failed before, or is a new one
                    self._leave_out(server, str(error))
                if failures > self.max_failures * len(self.servers):
                    raise self._none_left() from error
            finally:
                server.load -= load
                apart.discard(server)
                self._notify()

    async def everywhere(self, do: Callable[[AnyClient, State], Awaitable[State]]) -> None:
        """`do` the same at every server that works, at once; the new state of each. One that comes
        back later is for `connect` to bring up to date."""

        async def one(server: PooledServer[AnyClient, State]) -> None:
            state = server.state
            assert state is not None
            try:
                changed = await do(server.client, state)
                if server.state is state:
                    server.state = changed
            except (ServerUnavailable, BadPayload) as error:
                if server.state is state:
                    self._leave_out(server, str(error))

        await _all(one(server) for server in self._working())

    async def ready(self) -> list[PooledServer[AnyClient, State]]:
        """Servers that work. Others are tried again when due, and at once if none is left."""
        self._return_due(at_once=not self._working())
        await asyncio.sleep(0)  # one that returns at once is among them
        while not (working := self._working()):
            attempts = [server.returning for server in self.servers if server.returning]
            if not attempts:
                raise self._none_left()
            await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
        return working

    async def close(self) -> None:
        """Nobody is reached any more, and what was started here ends."""
        self.closed = True
        for server in self.servers:
            if server.returning is not None:
                server.returning.cancel()
        processes = [server.process for server in self.servers if server.process is not None]
        await asyncio.gather(*(asyncio.to_thread(process.close) for process in processes))

    async def _reach(self, server: PooledServer[AnyClient, State]) -> State:
        if self.closed:
            raise ModelError(f"the run is over, and its {self.kind}s with it")
        if server.process is not None:
            url = await asyncio.to_thread(server.process.start)
            server.client = replace(server.client, url=url)
        return await self.connect(server.client)

    async def _take(
        self, load: int, apart: set[PooledServer[AnyClient, State]]
    ) -> tuple[PooledServer[AnyClient, State], State]:
        """The server for some work, which is added to its load. Waits while all have enough."""
        while True:
            working = [server for server in await self.ready() if server not in apart]
            least = min(working, key=lambda server: server.load, default=None)
            free = least is not None and least.load <= max(self.max_load - load, 0)
            if least is not None and least.state is not None and free:
                least.load += load
                return least, least.state
            await self._changed.wait()

    def _notify(self) -> None:
        """Who waits for a server looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _working(self) -> list[PooledServer[AnyClient, State]]:
        return [server for server in self.servers if server.state is not None]

    def _return_due(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        for server in self.servers:
            due = at_once or now >= server.retry_at
            if server.state is None and server.returning is None and due:
                server.returning = asyncio.create_task(self._return(server))

    async def _return(self, server: PooledServer[AnyClient, State]) -> None:
        try:
            server.state = await self._reach(server)
            log.info("%s %s is back", self.kind, server.name)
        except (ServerUnavailable, ModelError, BadPayload) as error:
            server.retry_at = time.monotonic() + RETRY_SECONDS
            server.reason = str(error)
        finally:
            server.returning = None
            self._notify()

    def _leave_out(self, server: PooledServer[AnyClient, State], reason: str) -> None:
        seconds = RETRY_SECONDS if server.process is None else 0.0
        server.state, server.reason = None, reason
        server.retry_at = time.monotonic() + seconds
        log.warning(
            "%s %s is gone (%s): its work goes to the others, and it is %s",
            self.kind,
            server.name,
            reason,
            f"tried again every {seconds:g} s" if seconds else "started again",
        )

    def _none_left(self) -> ModelError:
        reasons = "; ".join(f"{server.name}: {server.reason}" for server in self.servers)
        return self.error(
            f"no {self.kind} is left ({reasons}). {self.fix}, and run the same command again"
        )


async def together(work: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results of all; where one fails, the others end."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """All of it to its end; then the first error, where there is one."""
    done = await asyncio.gather(*work, return_exceptions=True)
    for outcome in done:
        if isinstance(outcome, BaseException):
            raise outcome
