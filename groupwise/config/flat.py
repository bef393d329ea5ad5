"""Settings under their flat names: batch.prompts, optimizer.lr."""

from collections.abc import Iterable, Mapping
from typing import Any


def leaves(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """{"batch": {"prompts": 4}} as {"batch.prompts": 4}"""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= leaves(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def within(name: str, blocks: Iterable[str]) -> bool:
    """Whether a setting is one of these, or inside one of them: tracking.wandb is in tracking."""
    return any(name == block or name.startswith(block + ".") for block in blocks)
