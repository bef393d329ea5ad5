"""Work spread over several servers: it goes to who is free, and one that fails is survived.

A server that fails is left out for a while and its work goes to the others. When none is left the
run ends with a message, and the same command goes on later from the last checkpoint.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from groupwise.config import EngineSettings, ReferenceSettings, WorkerSettings
from groupwise.errors import ModelError
from groupwise.remote.client import ServerClient, ServerUnavailable, token_from_environment
from groupwise.remote.payload import BadPayload

log = logging.getLogger("groupwise")

RETRY_SECONDS = 30.0
"""How long a server that failed is left alone before it is tried again."""

Client = TypeVar("Client")
AnyClient = TypeVar("AnyClient", bound=ServerClient)
State = TypeVar("State")
Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass(eq=False)
class PooledServer(Generic[Client, State]):
    """A server, and how it is. `state` is None until it was reached, and while it is left out.

    `restarts`: it is ours to start again, so it is not left alone when it fails.
    """

    name: str
    client: Client
    restarts: bool = False
    state: State | None = None
    retry_at: float = 0.0
    reason: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


def pooled(
    client: type[AnyClient],
    settings: ReferenceSettings | EngineSettings | WorkerSettings,
    setting: str,
) -> list[PooledServer[AnyClient, Any]]:
    """A server for each address. `setting` asked for them: a missing token's error names it."""
    token = token_from_environment(settings.token_env, setting, client.command)
    rest = (token, settings.token_env, settings.timeout)
    return [PooledServer(url, client(url, *rest)) for url in (u.rstrip("/") for u in settings.urls)]


class WorkQueue:
    """WorkQueue({0: "a", 1: "a", 2: "b"}) hands out three pieces of work, of two prefixes.

    Work with the same prefix goes to one server where it can: vLLM keeps the keys and values of a
    prompt for the next answer to it, each server for itself.
    """

    def __init__(self, prefix_of: dict[int, Hashable]) -> None:
        self._prefix_of = prefix_of
        self._lock = threading.Lock()
        self._left: dict[Hashable, deque[int]] = {}
        for index, prefix in prefix_of.items():
            self._left.setdefault(prefix, deque()).append(index)
        self._server_of: dict[Hashable, int] = {}

    def take(self, server: int) -> int | None:
        """Work for this server: of a prefix that it has begun, of a new one, of any."""
        with self._lock:
            own = (p for p in self._left if self._server_of.get(p) == server)
            new = (p for p in self._left if p not in self._server_of)
            for prefixes in (own, new, self._left):
                prefix = next(iter(prefixes), None)
                if prefix is not None:
                    break
            else:
                return None
            self._server_of.setdefault(prefix, server)
            index = self._left[prefix].popleft()
            if not self._left[prefix]:
                del self._left[prefix]
            return index

    def put_back(self, index: int) -> None:
        """Its server failed; the prefix is anyone's again."""
        with self._lock:
            prefix = self._prefix_of[index]
            self._left.setdefault(prefix, deque()).appendleft(index)
            self._server_of.pop(prefix, None)

    def clear(self) -> None:
        with self._lock:
            self._left.clear()


def from_last_checkpoint(text: str) -> ModelError:
    return ModelError(f"{text}: it goes on from the last checkpoint")


class ServerPool(Generic[Client, State]):
    """`connect(client)` makes a server ready and gives its state.

    `kind` is what messages call a server, `fix` how to get one when none is left, and `error` what
    is raised then. `max_failures`, of each server in one `spread`: work that fails everywhere
    ends the run.
    """

    def __init__(
        self,
        servers: Iterable[PooledServer[Client, State]],
        connect: Callable[[Client], State],
        kind: str,
        fix: str,
        error: Callable[[str], ModelError] = from_last_checkpoint,
        max_failures: int = 3,
    ) -> None:
        self.servers = list(servers)
        self.connect, self.kind, self.fix, self.error = connect, kind, fix, error
        self.max_failures = max_failures

    def connect_all(self) -> None:
        """Here a wrong token or model ends the run; later on it does not."""
        self._update(self.servers, self.connect)

    def ready(self) -> list[PooledServer[Client, State]]:
        """Servers that work. Others are tried again when due, and at once if none is left."""
        now = time.monotonic()
        none_left = all(server.state is None for server in self.servers)
        for server in self.servers:
            if server.state is None and (none_left or now >= server.retry_at):
                try:
                    server.state = self.connect(server.client)
                    log.info("%s %s is back", self.kind, server.name)
                except (ServerUnavailable, ModelError) as error:
                    server.retry_at = time.monotonic() + RETRY_SECONDS
                    server.reason = str(error)
        return self._working()

    def spread(
        self,
        work: Sequence[Work],
        do: Callable[[Client, State, Work], Result],
        *,
        prefixes: Sequence[Hashable] | None = None,
        lanes: int = 1,
    ) -> list[Result]:
        """`do` all of the work, up to `lanes` pieces at once at each server; results in order."""
        results: dict[int, Result] = {}
        failures, ready = 0, self.ready()
        while len(results) < len(work):
            left = [index for index in range(len(work)) if index not in results]
            queue = WorkQueue({i: prefixes[i] if prefixes else i for i in left})

            def serve(number: int, queue: WorkQueue = queue) -> int:
                return self._serve(number, queue, work, do, results)

            numbers = [self.servers.index(server) for server in ready]
            failures += sum(_in_parallel(serve, numbers * min(lanes, len(left))))
            if len(results) < len(work):
                if failures > self.max_failures * len(self.servers):
                    raise self._none_left()
                ready = self.ready()
        return [results[index] for index in range(len(work))]

    def everywhere(self, do: Callable[[Client, State], State]) -> None:
        """`do` the same at every server that works, at once; the new state of each."""
        ready = self.ready()
        states = {id(server.client): server.state for server in ready}

        def update(client: Client) -> State:
            state = states[id(client)]
            assert state is not None
            return do(client, state)

        self._update(ready, update)

    def _update(
        self, servers: Sequence[PooledServer[Client, State]], state_of: Callable[[Client], State]
    ) -> None:
        def one(server: PooledServer[Client, State]) -> None:
            try:
                server.state = state_of(server.client)
            except (ServerUnavailable, BadPayload) as error:
                self._leave_out(server, str(error))

        _in_parallel(one, servers)
        self._working()

    def _serve(
        self,
        number: int,
        queue: WorkQueue,
        work: Sequence[Work],
        do: Callable[[Client, State, Work], Result],
        results: dict[int, Result],
    ) -> int:
        """Do what waits until nothing does, or until the server fails; 1 where it failed here."""
        server = self.servers[number]
        while (state := server.state) is not None:
            index = queue.take(number)
            if index is None:
                return 0
            try:
                results[index] = do(server.client, state, work[index])
            except (ServerUnavailable, BadPayload) as error:
                queue.put_back(index)
                return int(self._leave_out(server, str(error)))
            except BaseException:
                queue.clear()  # the run cannot go on: the others need not either
                raise
        return 0

    def _leave_out(self, server: PooledServer[Client, State], reason: str) -> bool:
        """Whether it still counted as working: of many threads, one says it."""
        seconds = 0.0 if server.restarts else RETRY_SECONDS
        with server.lock:
            if server.state is None and server.reason:
                return False
            server.state, server.reason = None, reason
            server.retry_at = time.monotonic() + seconds
        again = f"tried again every {seconds:g} s" if seconds else "started again"
        log.warning(
            "%s %s is gone (%s): its work goes to the others, and it is %s",
            self.kind,
            server.name,
            reason,
            again,
        )
        return True

    def _working(self) -> list[PooledServer[Client, State]]:
        working = [server for server in self.servers if server.state is not None]
        if not working:
            raise self._none_left()
        return working

    def _none_left(self) -> ModelError:
        reasons = "; ".join(f"{server.name}: {server.reason}" for server in self.servers)
        return self.error(
            f"no {self.kind} is left ({reasons}). {self.fix}, and run the same command again"
        )


def _in_parallel(do: Callable[[Work], Result], items: Sequence[Work]) -> list[Result]:
    with ThreadPoolExecutor(max(len(items), 1)) as threads:
        return [task.result() for task in [threads.submit(do, item) for item in items]]
