"""Which settings keep a run from going on in the folder of another."""

from groupwise.config import Config
from groupwise.config.flat import leaves, within
from groupwise.secrets import without_secrets

# What may change between two starts of the same run without changing what was computed so far.
FREE = (
    "checkpoint",
    "tracking",
    "distributed",
    "ray",
    "batch.tokens_per_microbatch",
    "reward_processes",
    "place",
    *(f"engine.{name}" for name in ("max_batch", "memory_share", "sleep", "eager")),
    *(f"reference.{name}" for name in ("urls", "token_env", "timeout")),
)


def differences(old: Config, new: Config) -> list[str]:
    """Settings in which two runs differ and that would change what was already computed."""
    before, after = (
        leaves(without_secrets(config.model_dump(mode="json"))) for config in (old, new)
    )
    free = FREE + (("steps",) if new.optimizer.schedule == "constant" else ())
    return [
        f"{name} was {before.get(name)!r} and is now {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name) and not within(name, free)
    ]
