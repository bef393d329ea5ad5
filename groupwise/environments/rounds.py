"""Turns in rounds, for runs that must repeat to the last digit.

Which requests an engine computes together changes the last digits of their log-probs, and with an
environment that depends on how fast it replies. In rounds, all episodes that run take their next
turn together: a slow environment is waited for, and time changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from torch import Tensor

from groupwise.rollout.engine import Engine, OnTokens, sample_stream
from groupwise.types import Completion, Request, Sampling


class Rounds:
    """Who takes part. `at_once` bounds how many episodes run; the others wait for a place."""

    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._queued = self._running = self._left = 0
        self._turns: list[tuple[tuple[int, int], object, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Of one episode. One that ends hands its place on: rounds wait for whoever takes it."""
        self._queued += 1
        async with self._slots:
            self._queued -= 1
            self._running += 1
            self._left -= self._left > 0
            try:
                yield
            finally:
                self._running -= 1
                self._left += self._queued > self._left
                self._begin()

    async def turn(self, order: tuple[int, int], episode: object) -> None:
        """Returns when all episodes that run want a turn, in their order.

        An agent may ask for several at once: it is one episode all the same.
        """
        loop = asyncio.get_running_loop()
        own = loop.create_future()
        self._turns.append((order, episode, own))
        try:
            loop.call_soon(self._begin)  # not at once: whoever comes last would go first
            await own
        finally:
            self._turns = [turn for turn in self._turns if turn[-1] is not own]

    def _begin(self) -> None:
        if self._left or len({id(episode) for _, episode, _ in self._turns}) < self._running:
            return
        for _, _, own in sorted(self._turns, key=lambda turn: turn[0]):
            if not own.done():
                own.set_result(None)
        self._turns = []


class InRounds:
    """An engine for one episode, whose requests wait for those of the other episodes; `number` is
    the episode's, by when it was begun."""

    def __init__(self, engine: Engine, rounds: Rounds, number: int) -> None:
        self.engine, self.rounds, self.number = engine, rounds, number

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        return await self.sample_stream(request, sampling, None)

    async def sample_stream(
        self, request: Request, sampling: Sampling, on_tokens: OnTokens | None
    ) -> tuple[Completion, ...]:
        await self.rounds.turn((self.number, request.keys[0]), self)
        return await sample_stream(self.engine, request, sampling, on_tokens)

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.engine.load_weights(version, weights)

    def close(self) -> None:
        self.engine.close()
