"""An engine in the place of workers, without processes: answers are a hash of key and weights.

So a run shows by its answers which weights sampled each of them, and the trainer may train at the
same time, which two models in one process could not.
"""

import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.config import Config
from groupwise.policy.load import Policy
from groupwise.remote.payload import trained_weights
from groupwise.types import Completion, Request, Sampling


class FakeWorkers:
    def __init__(self, policy: Policy, config: Config) -> None:
        self.policy = policy
        self.version: int | None = None
        self.digest = ""
        self.published: list[int] = []

    def copy_weights(self) -> dict[str, Tensor]:
        return {name: weight.clone() for name, weight in trained_weights(self.policy).items()}

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        if version == self.version:
            return
        self.version = version
        self.published.append(version)
        found = hashlib.sha256()
        for name in sorted(weights):
            found.update(weights[name].contiguous().view(torch.uint8).numpy().tobytes())
        self.digest = found.hexdigest()

    def sync(self, version: int) -> None:
        self.publish(version, self.copy_weights())

    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> list[tuple[Completion, ...]]:
        if self.version is None:
            self.sync(0)
        time.sleep(random.random() * 0.02)  # timing must not matter
        return [tuple(self._answer(key, sampling) for key in r.keys) for r in requests]

    def close(self) -> None:
        """Nothing runs."""

    def _answer(self, key: int, sampling: Sampling) -> Completion:
        rng: Any = random.Random(f"{key} {self.digest}")
        length = rng.randint(1, sampling.max_tokens)
        tokens = tuple(rng.randrange(5, self.policy.vocab) for _ in range(length))
        logprobs = tuple(float(torch.tensor(-3 - 2 * rng.random())) for _ in tokens)
        assert self.version is not None
        return Completion(tokens, logprobs, "length", "", self.version)
