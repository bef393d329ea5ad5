"""Settings as a tree of blocks, and others put over them."""

from collections.abc import Mapping
from typing import Any

# A plain string where a block is expected names its kind: `task: countdown`, `algorithm: dapo`.
SHORTHAND = {
    "task": "kind",
    "engine": "kind",
    "place": "kind",
    "environment": "kind",
    "timing": "kind",
    "reference": "kind",
    "adapter": "kind",
    "algorithm": "preset",
}


def merged(settings: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with those of `block` over them. A block of another kind replaces the whole."""
    tree, over = expand_shorthand(settings), expand_shorthand(block)
    for key, value in over.items():
        own = tree.get(key)
        names = [name for name in ("kind", "preset") if isinstance(value, dict) and name in value]
        same = isinstance(own, dict) and all(own.get(n) == value[n] for n in names)
        joined = same and isinstance(value, dict)
        tree[key] = {**own, **value} if joined and isinstance(own, dict) else value
    return tree


def expand_shorthand(data: Mapping[str, Any]) -> dict[str, Any]:
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    for key in SHORTHAND:
        value = tree.get(key)
        if isinstance(value, str):
            tree[key] = block_of(key, value)
    return tree


def block_of(key: str, text: str) -> dict[str, Any]:
    """`countdown` is {kind: countdown}, and `gym:countdown` {kind: gym, name: countdown}."""
    kind, colon, name = text.partition(":")
    if key == "task" and colon:
        return {"kind": kind, "name": name}
    return {SHORTHAND[key]: text}


def with_changes(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """{"steps": 5, "batch": {"prompts": 4}, "optimizer.lr": 1e-5} over `settings`."""
    tree = dict(settings)
    for key, value in changes.items():
        block, dot, name = str(key).partition(".")
        inner = tree.get(block)
        if dot:
            value = with_changes(inner if isinstance(inner, Mapping) else {}, {name: value})
            tree[block] = value
        else:
            tree = merged(tree, {block: value})
    return tree
