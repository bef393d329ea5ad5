"""What the scorer and its worker process say to each other, beside a batch and a call.

They have a file of their own since the worker runs as a main module: pickle would know its classes
under another name than the parent does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Load:
    """Import this function and keep it: the n-th loaded is reward n of a call."""

    reference: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Unload:
    """Forget the function that was loaded last: it runs elsewhere."""


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
