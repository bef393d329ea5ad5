"""How many episodes run at the same time.

An episode that waits for its environment does not use the model. So its slot counts as idle, and
another episode may begin meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Self

from torch import Tensor

from groupwise.rollout.engine import Engine, OnTokens, StreamingEngine, sample_stream
from groupwise.types import Completion, Request, Sampling

IDLE_SECONDS = 0.1
"""After so long without a request a slot counts as idle: beginning another episode for less is not
worth it."""


class EpisodeSlots:
    """`at_once` bounds the episodes that the model is busy with, `most` all that have begun."""

    def __init__(self, at_once: int, most: int) -> None:
        self.at_once, self.most = at_once, most
        self.open = self.idle = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    def slot(self, number: int) -> "EpisodeSlot":
        """For an episode; `number` says in which order episodes were asked for."""
        return EpisodeSlot(self)

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
        while self._queue and self.open < self.most and self.open - self.idle < self.at_once:
            entered = self._queue.popleft()
            if not entered.done():
                self.open += 1
                entered.set_result(None)


class EpisodeSlot:
    """The slot of one episode: idle while the episode makes no request to the model."""

    def __init__(self, slots: EpisodeSlots) -> None:
        self._slots, self._requests = slots, 0
        self._held = self._idle = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._slots.enter()
        self._held = True
        self._wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._take_back()
        self._held = False
        self._slots.leave()

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[None]:
        """One request. An agent may make several at once. An idle slot is taken back at once, even
        where more episodes then run than `at_once`."""
        self._requests += 1
        self._take_back()
        try:
            yield
        finally:
            self._requests -= 1
            if self._held and not self._requests:  # an agent may end before its requests do
                self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._free_while_idle)

    def _free_while_idle(self) -> None:
        self._idle = True
        self._slots.idle += 1
        self._slots.admit()

    def _take_back(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._slots.idle -= self._idle
        self._idle = False


class EpisodeEngine(StreamingEngine):
    """The engine as one episode has it: `turn` is entered around each of its requests."""

    def __init__(
        self, engine: Engine, turn: Callable[[Request], AbstractAsyncContextManager[None]]
    ) -> None:
        self.engine, self.turn = engine, turn

    async def sample_stream(
        self, request: Request, sampling: Sampling, on_tokens: OnTokens | None
    ) -> tuple[Completion, ...]:
        async with self.turn(request):
            return await sample_stream(self.engine, request, sampling, on_tokens)

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.engine.load_weights(version, weights)

    def close(self) -> None:
        self.engine.close()
