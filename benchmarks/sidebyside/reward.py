"""The reward that both sides are given. It imports nothing, so a worker process starts at once."""

from typing import Any


def letters(completions: list[str], **columns: Any) -> list[float]:
    """The number of characters: costs nothing, and tells answers of a group apart."""
    return [float(len(completion)) for completion in completions]
