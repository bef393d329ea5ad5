"""What the scorer and its worker process say to each other, beside a batch and a call.

They have a file of their own since the worker runs as a main module: pickle would know its classes
under another name than the parent does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from groupwise.rewards.base import Signature


@dataclass(frozen=True)
class Load:
    """Import this function and keep it: the n-th that is kept is reward n of a call.

    A worker that is shared keeps no asynchronous ones: they run in one of their own.
    """

    reference: str
    options: Mapping[str, Any]
    shared: bool

    def keeps(self, signature: Signature) -> bool:
        return not (self.shared and signature.asynchronous)


@dataclass(frozen=True)
class Refused:
    """A function that cannot be loaded, or a message that cannot be read."""

    why: str


@dataclass(frozen=True)
class Failure:
    """One answer's failure; without a slot, that of a call for several answers at once."""

    slot: int | None
    what: str


@dataclass(frozen=True)
class Done:
    """The batch is read, or the call has ended."""
