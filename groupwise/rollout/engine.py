"""What samples answers, behind one Protocol: the loop does not know which engine it drives.

    answers = await engine.sample(Request(prompt_tokens, keys), Sampling(max_tokens=256))

Requests come at any time, any number at once. An answer is a function of its key, its prompt, the
sampling settings and the weights: neither order nor neighbours nor timing change it.
"""

import asyncio
import contextvars
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from torch import Tensor

from groupwise.types import Completion, Request, Sampling

Result = TypeVar("Result")


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


class EngineElsewhere:
    """The engine of ranks for which another rank samples. Weights that ranks hold together are
    gathered by all of them, so this one reads them too."""

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
    """The answers to all requests, in order, for those who can wait for the last of them."""

    async def gather() -> list[tuple[Completion, ...]]:
        return list(await asyncio.gather(*(engine.sample(r, sampling) for r in requests)))

    return wait_for(gather())


def wait_for(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine, for code that is none; also where a loop runs, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(contextvars.copy_context().run, asyncio.run, work).result()
