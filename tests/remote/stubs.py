"""Servers without HTTP, for tests of who does what and of what happens when one dies."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from groupwise.remote.client import ServerClient, ServerUnavailable


@dataclass
class Stub:
    """One that dies when it is asked for the n-th time, and may come back."""

    url: str
    dies_at: int | None = None
    returns: bool = False
    pause: float = 0.0
    asked: int = 0

    @property
    def dead(self) -> bool:
        return self.dies_at is not None and self.asked >= self.dies_at

    def reach(self) -> None:
        """As a new process, where it was dead."""
        if self.dead and not self.returns:
            raise ServerUnavailable("connection refused")
        if self.dead:
            self.dies_at = None


def connect(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, client: type[ServerClient], *stubs: Stub
) -> None:
    """In place of a module's clients."""
    monkeypatch.setenv("GROUPWISE_TOKEN", "x" * 20)
    known = {stub.url: stub for stub in stubs}

    class Connected:
        command, kind = client.command, client.kind

        def __new__(cls, url: str, *_: Any) -> Any:
            return known[url]

    monkeypatch.setattr(module, client.__name__, Connected)


def requests_until_death(
    monkeypatch: pytest.MonkeyPatch, client: type[ServerClient], most: int
) -> None:
    """After so many requests every server is gone."""
    requests, original = 0, client.request

    async def until_it_dies(self: Any, *args: Any, **more: Any) -> bytes:
        nonlocal requests
        requests += 1
        if requests > most:
            raise ServerUnavailable("connection reset")
        return await original(self, *args, **more)

    monkeypatch.setattr(client, "request", until_it_dies)
