"""How many episodes run at the same time, and which of them count.

An episode that waits for its environment keeps the model from nothing. So it lends its place: while
it waits, another episode may begin.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Self

from torch import Tensor

from groupwise.rollout.engine import Engine, OnTokens, sample_stream
from groupwise.types import Completion, Request, Sampling

LEND_SECONDS = 0.1
"""An environment that replies sooner is not worth another episode."""


class Places:
    """`at_once` bounds the episodes that the model is busy with, `most` all that have begun."""

    def __init__(self, at_once: int, most: int) -> None:
        self.at_once, self.most = at_once, most
        self.open = self.lent = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    def place(self, number: int) -> "Place":
        """For an episode; `number` is its own, by when it was asked for."""
        return Place(self)

    async def enter(self) -> None:
        entered = asyncio.get_running_loop().create_future()
        self._queue.append(entered)
        self.admit()
        try:
            await entered
        except asyncio.CancelledError:
            if not entered.cancelled():  # it was let in, and never knew
                self.leave()
            raise

    def leave(self) -> None:
        self.open -= 1
        self.admit()

    def admit(self) -> None:
        while self._queue and self.open < self.most and self.open - self.lent < self.at_once:
            entered = self._queue.popleft()
            if not entered.done():
                self.open += 1
                entered.set_result(None)


class Place:
    """That of one episode, which lends it while it asks the model for nothing."""

    def __init__(self, places: Places) -> None:
        self._places, self._requests = places, 0
        self._held = self._lent = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._places.enter()
        self._held = True
        self._wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._take_back()
        self._held = False
        self._places.leave()

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[None]:
        """An agent may ask for several at once. Who comes back waits for nobody."""
        self._requests += 1
        self._take_back()
        try:
            yield
        finally:
            self._requests -= 1
            if self._held and not self._requests:  # an agent may end before its requests do
                self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LEND_SECONDS, self._lend)

    def _lend(self) -> None:
        self._lent = True
        self._places.lent += 1
        self._places.admit()

    def _take_back(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._places.lent -= self._lent
        self._lent = False


class EpisodeEngine:
    """The engine as one episode has it: `turn` is entered around each of its requests."""

    def __init__(
        self, engine: Engine, turn: Callable[[Request], AbstractAsyncContextManager[None]]
    ) -> None:
        self.engine, self.turn = engine, turn

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        return await self.sample_stream(request, sampling, None)

    async def sample_stream(
        self, request: Request, sampling: Sampling, on_tokens: OnTokens | None
    ) -> tuple[Completion, ...]:
        async with self.turn(request):
            return await sample_stream(self.engine, request, sampling, on_tokens)

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.engine.load_weights(version, weights)

    def close(self) -> None:
        self.engine.close()
