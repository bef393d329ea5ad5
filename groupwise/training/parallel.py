"""The optimizer for each `distributed.kind`, and what a kind cannot be combined with."""

import logging

from groupwise.compat.transformers import is_saved_in_another_form
from groupwise.config import Config
from groupwise.distributed.world import World
from groupwise.errors import ConfigError
from groupwise.policy.policy import Policy
from groupwise.training.optim import MakeOptimizer, Optimizer, TrainingOptimizer

log = logging.getLogger("groupwise")


def kind_for(config: Config, world: World) -> str:
    """`none` for one process; `ddp` for several where the recipe does not say."""
    if world.size == 1:
        return "none"
    return "ddp" if config.distributed.kind == "none" else config.distributed.kind


def check_ranks(config: Config, world: World) -> None:
    """Refuse combinations that cannot work, and log what the ranks do."""
    wanted, kind = config.distributed.kind, kind_for(config, world)
    if kind == "none" and wanted != "none":
        log.info(
            "distributed.kind=%s is for several processes, and this is one: nothing is sharded. "
            "Start several with --nproc N or torchrun",
            wanted,
        )
    elif kind != "none":
        log.info("%d ranks, %s", world.size, kind)
    if kind in ("none", "ddp"):
        return
    if config.quantization is not None:
        raise ConfigError(
            f"quantization={config.quantization} works with distributed.kind=ddp, not with {kind}: "
            "quantized weights cannot be cut into parts"
        )
    if config.optimizer.kind != "adamw":
        raise ConfigError(
            f"optimizer.kind={config.optimizer.kind} works with distributed.kind=ddp, not with "
            f"{kind}, which splits moments over ranks: use optimizer.kind=adamw"
        )
    if config.optimizer.offload and kind in ("fsdp2", "zero0"):
        raise ConfigError(
            f"optimizer.offload does not work with distributed.kind={kind}: use "
            + ("distributed.offload_parameters=true" if kind == "fsdp2" else "ddp, or zero1")
        )


def keeps_whole_copy(config: Config, policy: Policy, world: World) -> bool:
    """Whether each rank keeps a full copy of the model beside its shard: to sample with, for a
    reference that follows the policy, or because it is saved in another form than it is trained."""
    sharded = kind_for(config, world) in ("fsdp2", "zero3")
    converted = is_saved_in_another_form(policy.model)
    copied = policy.adapter is not None or config.reference_moves or converted
    return copied or not sharded or config.place.kind == "here"


def make_optimizer(
    config: Config, policy: Policy, world: World, optimizer: MakeOptimizer | None = None
) -> tuple[TrainingOptimizer, Policy | None]:
    """The optimizer, and this rank's shard of the policy where the model is sharded."""
    kind = kind_for(config, world)
    settings, steps = config.optimizer, config.steps
    if kind in ("none", "ddp"):
        return Optimizer(policy.model, settings, steps, world, make=optimizer), None
    if optimizer is not None:
        raise ConfigError(f"an optimizer of your own works with distributed.kind=ddp, not {kind}")
    if kind == "fsdp2":
        from groupwise.training.shards import shard

        shards = shard(policy, config, world)
        dtype = policy.model.dtype
        return Optimizer(shards.model, settings, steps, world, computed_in=dtype), shards
    from groupwise.training.zero import make_zero

    return make_zero(policy, config, world)
