"""What a run computes with and where, in words: for its start, and for `groupwise check`."""

import torch

from groupwise.config import Config
from groupwise.policy.footprint import footprint
from groupwise.policy.policy import Policy


def describe(config: Config, policy: Policy) -> str:
    """The choices that `auto` made, and what they cost in memory: two lines that fit a terminal."""
    cost = footprint(policy.model, config.optimizer)
    dtype = str(policy.model.dtype).removeprefix("torch.")
    quantized = getattr(policy.model, "is_quantized", False)
    held = f"{config.quantization} and {dtype}" if quantized else dtype
    count = torch.get_num_threads()
    threads = f" ({count} thread{'s' * (count > 1)})" if policy.device.type == "cpu" else ""
    return (
        f"{config.model}: {cost.parameters / 1e6:.1f} M parameters, {held} on "
        f"{policy.device.type}{threads}, {policy.layout.replace('_', '-')} batches\n{cost}"
    )


def describe_place(config: Config) -> str:
    """What samples where, how old its weights may be, and what corrects for that."""
    place, how = config.place, config.algorithm.mismatch
    named = {"here": "in the trainer's process"}.get(place.kind, "")
    if place.kind == "processes":
        named = f"in {place.count} processes of this machine"
    if place.kind == "servers":
        named = f"at {', '.join(place.urls)}"
    staleness = config.timing.max_staleness
    if not staleness:
        return f"{config.engine.kind} {named}; answers are by the present weights"
    fixed = f"corrected for by algorithm.mismatch={how}" if how != "none" else "NOT corrected for"
    return (
        f"{config.engine.kind} {named}; answers are by weights up to {staleness} updates old, "
        f"{fixed}"
    )
