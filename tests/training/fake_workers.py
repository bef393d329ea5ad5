"""An engine in the place of workers, without processes: answers are a hash of key and weights.

So a run shows by its answers which weights sampled each of them, and the trainer may train at the
same time, which two models in one process could not.
"""

import asyncio
import hashlib
import random
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from groupwise.config import Config
from groupwise.policy.load import Policy
from groupwise.policy.weights import trained_weights
from groupwise.types import Completion, Request, Sampling


class FakeWorkers:
    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy = policy
        self.version: int | None = None
        self.digest = ""
        self.published: list[int] = []

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        if version == self.version:
            return
        self.version = version
        self.published.append(version)
        found = hashlib.sha256()
        for _, weight in sorted(weights):
            found.update(weight.contiguous().view(torch.uint8).numpy().tobytes())
        self.digest = found.hexdigest()

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        if self.version is None:
            self.load_weights(0, trained_weights(self.policy).items())
        await asyncio.sleep(random.random() * 0.02)  # timing must not matter
        return tuple(self._answer(key, sampling) for key in request.keys)

    def close(self) -> None:
        """Nothing runs."""

    def _answer(self, key: int, sampling: Sampling) -> Completion:
        rng: Any = random.Random(f"{key} {self.digest}")
        length = rng.randint(1, sampling.max_tokens)
        tokens = tuple(rng.randrange(5, self.policy.vocab) for _ in range(length))
        logprobs = tuple(float(torch.tensor(-3 - 2 * rng.random())) for _ in tokens)
        assert self.version is not None
        return Completion(tokens, logprobs, "length", "", self.version)
