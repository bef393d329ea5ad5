"""Turns in rounds, for runs that must repeat to the last digit.

Which requests an engine computes together changes the last digits of their log-probs, and with an
environment that depends on how fast it replies. In rounds, all episodes that run take their next
turn together: a slow environment is waited for, and time changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from groupwise.environments.slots import EpisodeSlot, EpisodeSlots
from groupwise.types import Request


class Rounds(EpisodeSlots):
    """The episodes that take part. A slot that becomes free goes to the next episode at once, and
    rounds wait for it; no slot counts as idle."""

    def __init__(self, at_once: int) -> None:
        super().__init__(at_once, at_once)
        self._turns: list[tuple[tuple[int, int], object, asyncio.Future[None]]] = []

    def slot(self, number: int) -> "RoundsSlot":
        return RoundsSlot(self, number)

    def leave(self) -> None:
        super().leave()
        self._begin()

    async def wait_for_turn(self, order: tuple[int, int], episode: object) -> None:
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
        if len({id(episode) for _, episode, _ in self._turns}) < self.open:
            return
        for _, _, own in sorted(self._turns, key=lambda turn: turn[0]):
            if not own.done():
                own.set_result(None)
        self._turns = []


class RoundsSlot(EpisodeSlot):
    def __init__(self, rounds: Rounds, number: int) -> None:
        super().__init__(rounds)
        self.rounds, self.number = rounds, number

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[None]:
        await self.rounds.wait_for_turn((self.number, request.keys[0]), self)
        yield
