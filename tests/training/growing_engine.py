"""An engine whose answers grow a token at a time, as others do, by whatever weights it has then.

A token is a hash of key, position and version, so that a test can tell which weights drew it.
"""

import asyncio
import random
import time
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from groupwise.config import Config
from groupwise.policy.load import Policy
from groupwise.types import Completion, Request, Sampling


def token(key: int, position: int, version: int) -> int:
    return random.Random(f"{key} {position} {version}").randrange(5, 60)


class GrowingEngine:
    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy, self.version = policy, 0
        self.loaded: list[int] = []

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        assert any(weight.numel() for _, weight in weights)
        self.version = version
        self.loaded.append(version)

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        return tuple(await asyncio.gather(*(self._answer(key, sampling) for key in request.keys)))

    def close(self) -> None:
        """Nothing runs."""

    async def _changes(self, times: int) -> None:
        """Until the weights have changed so often, or it takes too long."""
        before, deadline = len(self.loaded), time.monotonic() + 0.6 * times
        while len(self.loaded) < before + times and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    async def _answer(self, key: int, sampling: Sampling) -> Completion:
        rng: Any = random.Random(key)
        length = rng.randint(1, sampling.max_tokens) if rng.random() < 0.7 else sampling.max_tokens
        tokens: list[int] = []
        versions: list[tuple[int, int]] = []
        slow = rng.random()
        for position in range(length):
            await asyncio.sleep(0.001)
            if position == length // 2 and slow < 0.15:  # the weights change once, or too often
                await self._changes(3 if slow < 0.04 else 1)
            if not versions or versions[-1][1] != self.version:
                versions.append((position, self.version))
            tokens.append(token(key, position, self.version))
        switched = tuple(versions) if len(versions) > 1 else ()
        logprobs = (-4.0,) * length
        return Completion(tuple(tokens), logprobs, "length", "", versions[0][1], versions=switched)
