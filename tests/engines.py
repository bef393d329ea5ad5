"""How tests drive an engine: `generate`, and `sync`, which gives it its policy's weights."""

from typing import Any

from groupwise.policy.weights import trained_weights
from groupwise.rollout.engine import generate

__all__ = ["generate", "sync"]


def sync(engine: Any, version: int) -> None:
    """Sample from the present weights of the engine's policy from now on."""
    engine.load_weights(version, trained_weights(engine.policy).items())
