"""Batch work that is cheaper together: items that wait at the same time go into one call."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from groupwise.types import Completion, Request, Sampling

Item = TypeVar("Item")
Result = TypeVar("Result")
Kind = TypeVar("Kind")


class Batched(Generic[Kind, Item, Result]):
    """Batched(work): `await batched.add(kind, item)` gives this item's result of `work(kind,
    items)`, with the other items of that kind that waited. One call of `work` at a time."""

    def __init__(self, work: Callable[[Kind, list[Item]], Awaitable[Sequence[Result]]]) -> None:
        self._work = work
        self._waiting: list[tuple[Kind, Item, asyncio.Future[Result]]] = []
        self._running: asyncio.Task[None] | None = None

    async def add(self, kind: Kind, item: Item) -> Result:
        result = asyncio.get_running_loop().create_future()
        self._waiting.append((kind, item, result))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return await result

    async def cancel(self) -> None:
        """Cancel the running call; items that wait are not worked on."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # items that are added at the same time go into one call
            kind = self._waiting[0][0]
            batch = [each for each in self._waiting if each[0] == kind]
            self._waiting = [each for each in self._waiting if each[0] != kind]
            try:
                results = await self._work(kind, [item for _, item, _ in batch])
            except BaseException as error:
                for _, _, future in batch + self._waiting:
                    if not future.done():
                        future.set_exception(error)
                self._waiting = []
                return
            for (_, _, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)


class BatchingEngine(ABC):
    """Derive from it and write `sample_batch`; it gives `sample`."""

    def __init__(self) -> None:
        self._requests: Batched[Sampling, Request, tuple[Completion, ...]] = Batched(
            lambda sampling, requests: self.sample_batch(requests, sampling)
        )

    @abstractmethod
    async def sample_batch(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> list[tuple[Completion, ...]]:
        """The answers to all of these requests, in order."""

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        return await self._requests.add(sampling, request)
