"""What engines in other processes have in common: servers, and weights that are sent to them."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from secrets import token_urlsafe
from typing import Any, Generic

from torch import Tensor

from groupwise.config import Config, Processes
from groupwise.config.engine import AnyPlace
from groupwise.errors import EngineGoneError
from groupwise.policy.load import Policy
from groupwise.policy.weights import trained_weights
from groupwise.remote.event_loop import client_loop
from groupwise.remote.local_servers import TOKEN_ENV, LocalServer
from groupwise.remote.pool import AnyClient, PooledServer, ServerPool, State, pooled

MakeProcesses = Callable[[Processes, str], Sequence[LocalServer]]
"""The servers that a place asks for, with a token that they take; not started yet."""


class RemoteEngine(ABC, Generic[AnyClient, State]):
    """Derive from it, write `sample` and the abstract methods, and `connect` in the end."""

    def __init__(
        self,
        policy: Policy,
        config: Config,
        client: type[AnyClient],
        processes: MakeProcesses,
        **limits: int,
    ) -> None:
        self.policy, self.config = policy, config
        self.in_flight = config.timing.kind == "in_flight"
        self.version: int | None = None
        self._sending = asyncio.Lock()
        elsewhere = f"Start one with `{client.command} MODEL`, name it in place.urls"
        here = "See above why, or sample in the trainer with place=here"
        self.pool: ServerPool[AnyClient, State] = ServerPool(
            _servers(config.place, client, processes),
            self._connect,
            client.kind,
            elsewhere if config.place.kind == "servers" else here,
            EngineGoneError,
            **limits,
        )

    def connect(self) -> None:
        """Reach every server; here a wrong token or model is an error."""
        try:
            client_loop().wait(self.pool.connect_all())
        except BaseException:
            self.close()
            raise

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """All servers sample from these weights from now on; those that come later get them too.

        When none is left, that is for `sample` to say: then the step before it is whole.
        """
        if version == self.version:
            for _ in weights:  # ranks that hold them together all read them to the end
                pass
            return
        loop = client_loop()
        loop.wait(self._sending.acquire())  # no server gets weights while they change
        try:
            self.keep_weights(version, weights)
            self.version = version
            with suppress(EngineGoneError):
                loop.wait(self.pool.everywhere(self.send_weights))
        finally:
            loop.loop.call_soon_threadsafe(self._sending.release)

    def load_first_weights(self) -> None:
        if self.version is None:
            self.load_weights(0, trained_weights(self.policy).items())

    def close(self) -> None:
        """No more; servers that were started here end, others go on."""
        client_loop().wait(self.pool.close())

    @abstractmethod
    async def check(self, client: AnyClient) -> State:
        """The state of a server that can be used for this run; raises ModelError for others."""

    @abstractmethod
    def keep_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take them, one at a time: they are sent afterwards, also to servers that come later."""

    @abstractmethod
    async def send_weights(self, client: AnyClient, state: State) -> State:
        """Give a server the present weights; its new state."""

    async def _connect(self, client: AnyClient) -> State:
        state = await self.check(client)
        async with self._sending:
            return state if self.version is None else await self.send_weights(client, state)


def _servers(
    place: AnyPlace, client: type[AnyClient], processes: MakeProcesses
) -> list[PooledServer[AnyClient, Any]]:
    if place.kind == "servers":
        return pooled(client, place, "place.urls")
    assert place.kind == "processes"
    token = token_urlsafe(24)
    started = processes(place, token)
    return [
        PooledServer(
            f"number {number} of this machine",
            client("", token, TOKEN_ENV, place.timeout),
            process,
        )
        for number, process in enumerate(started, 1)
    ]
