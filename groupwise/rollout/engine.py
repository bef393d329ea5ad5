"""The protocol of engines, which sample answers: the loop does not know which one it uses.

    answers = await engine.sample(Request(prompt_tokens, keys), Sampling(max_tokens=256))

Requests come at any time, any number at once. An answer is a function of its key, its prompt, the
sampling settings and the weights: neither order nor neighbours nor timing change it.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from groupwise.types import Completion, Request, Sampling

Result = TypeVar("Result")
OnTokens = Callable[[int, Sequence[int], Sequence[float]], None]
"""on_tokens(number of the answer in its request, its next tokens, their log-probs)"""


class Engine(Protocol):
    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        """One answer for each of the request's keys; `text` is left for the caller to decode."""
        ...

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Sample from these weights from now on, and call them `version`.

        They come one tensor at a time, by the names of `trained_weights`, and may be read once.
        """
        ...

    def close(self) -> None:
        """No more requests come: give back memory, processes and connections."""
        ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that can stream tokens before an answer ends. Derive from it: it gives `sample`."""

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        return await self.sample_stream(request, sampling, None)

    async def sample_stream(
        self, request: Request, sampling: Sampling, on_tokens: OnTokens | None
    ) -> tuple[Completion, ...]:
        """As `sample`; `on_tokens` is called in the engine's thread, as tokens are drawn."""
        ...


async def sample_stream(
    engine: Engine, request: Request, sampling: Sampling, on_tokens: OnTokens | None
) -> tuple[Completion, ...]:
    """The answers; where the engine cannot stream, `on_tokens` is never called."""
    if on_tokens is not None and isinstance(engine, StreamingEngine):
        return await engine.sample_stream(request, sampling, on_tokens)
    return await engine.sample(request, sampling)


class EngineElsewhere:
    """The engine of ranks for which rank 0 samples. To gather sharded weights is a collective, so
    this one reads them as well."""

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        raise AssertionError("rank 0 samples")

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        for _ in weights:
            pass

    def close(self) -> None:
        """It holds nothing."""


def generate(
    engine: Engine, requests: Sequence[Request], sampling: Sampling
) -> list[tuple[Completion, ...]]:
    """The answers to all requests, in order. Returns when the last one is done."""

    async def gather() -> list[tuple[Completion, ...]]:
        return list(await asyncio.gather(*(engine.sample(r, sampling) for r in requests)))

    return run_sync(gather())


def run_sync(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine from synchronous code, also where an event loop runs already (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(contextvars.copy_context().run, asyncio.run, work).result()
