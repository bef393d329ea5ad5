"""What samples answers, behind one Protocol: the loop does not know which engine it drives."""

from collections.abc import Sequence
from typing import Protocol

from groupwise.types import Completion, Request, Sampling


class Engine(Protocol):
    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> list[tuple[Completion, ...]]:
        """One tuple of answers per request, in order; `text` is left for the caller to decode."""
        ...

    def sync(self, version: int) -> None:
        """Sample from the policy's present weights from now on, and call them `version`."""
        ...
