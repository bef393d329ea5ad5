"""DeepSpeed ZeRO 0 to 3, through accelerate, behind the same protocol as our own optimizer.

DeepSpeed's engine runs backward passes, sums gradients, clips, and steps torch's AdamW on the fp32
parts that it keeps; the schedule and the weight-decay groups are ours. It averages over ranks what
has to be added up, so it is given `world.size` times the loss, and it needs equally many backward
passes of every rank. Stages 0 to 2 train the policy's own weights. Stage 3 shards weights: a full
copy of the policy samples and follows, as with FSDP2 (shards.py).

Checkpoints name tensors as ours do, so that a run can change between all kinds.
"""

import importlib.util
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from groupwise.compat import deepspeed as zero_state
from groupwise.compat.accelerate import reset_accelerate
from groupwise.config import Config
from groupwise.distributed.world import World
from groupwise.errors import ConfigError, MissingExtraError
from groupwise.policy.load import pick_device
from groupwise.policy.policy import Policy
from groupwise.training.loss_scale import GROW_AFTER, LossScale
from groupwise.training.optim import copy_weights, learning_rate, parameter_groups
from groupwise.training.shards import ForwardRoot, copy_policy

MOMENTS = ("exp_avg", "exp_avg_sq")
PREFETCH = 50_000_000
"""DeepSpeed's default: weights that stage 3 gathers ahead of their use."""


def make_zero(policy: Policy, config: Config, world: World) -> tuple["ZeroOptimizer", Policy]:
    """The optimizer, and the policy as DeepSpeed's engine runs it."""
    if importlib.util.find_spec("deepspeed") is None:
        raise MissingExtraError("deepspeed", "deepspeed")
    stage, device = int(config.distributed.kind[-1]), pick_device(config.device)
    if stage == 0 and policy.model.dtype != torch.float32:
        raise ConfigError(
            "distributed.kind=zero0 trains in fp32 only: use ddp, which splits as little, or zero1"
        )
    if policy.model.dtype == torch.float16 and device.type == "cpu":
        raise ConfigError(
            "DeepSpeed has no fp16 on a CPU: use precision=fp32 or bf16, or distributed.kind=fsdp2"
        )
    if config.optimizer.average:
        raise ConfigError(
            "optimizer.average needs distributed.kind=ddp or fsdp2: DeepSpeed keeps its weights"
        )
    learner = copy_policy(policy) if stage == 3 else policy
    optimizer = ZeroOptimizer(learner, config, world, stage, device)
    return optimizer, replace(learner, run=optimizer.engine, passes=world.max, runs_on=device)


class ZeroOptimizer:
    def __init__(
        self, policy: Policy, config: Config, world: World, stage: int, device: torch.device
    ) -> None:
        self.world, self.stage = world, stage
        self.settings, self.total_steps = config.optimizer, config.steps
        self.dtype = policy.model.dtype
        named = policy.model.named_parameters()
        self.weights = {name: p for name, p in named if p.requires_grad}
        groups = parameter_groups(list(self.weights.values()), self.settings)
        shared = {"lr": self.settings.lr, "betas": self.settings.betas, "eps": self.settings.eps}
        adamw = FiniteAdamW(groups, **shared)
        self.engine = _engine(ForwardRoot(policy.model), adamw, config, stage, device, self.dtype)
        self.adamw: torch.optim.AdamW = adamw

    @property
    def scale(self) -> LossScale | None:
        """DeepSpeed's own, which it applies itself."""
        if self.dtype != torch.float16:
            return None
        return LossScale(*zero_state.read_loss_scale(self.engine.optimizer))

    def backward(self, loss: Tensor, last: bool = True) -> None:
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss * self.world.size)

    def step(self, progress: float) -> tuple[float, float]:
        lr = learning_rate(self.settings, int(progress), self.total_steps)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        norm = None
        if self.stage == 0:
            grads = [weight.grad for weight in self.weights.values() if weight.grad is not None]
            norm = nn.utils.get_total_norm(grads)
        self.engine.step()
        return float(self.engine.get_global_grad_norm() if norm is None else norm), lr

    @torch.no_grad()
    def end_training_step(self, done: int, model: nn.Module) -> None:
        """There is no mean of weights: `make_zero` refuses to make one."""
        if self.stage == 3:
            copy_weights(model, self.full_weights())

    def zero_grad(self) -> None:
        self.engine.optimizer.zero_grad()

    @torch.no_grad()
    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        import deepspeed

        for name, weight in self.weights.items():
            with deepspeed.zero.GatheredParameters([weight]):
                full = weight.data.clone()
            yield name, full

    def state(self) -> Mapping[str, Tensor]:
        return _State(self)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        if self.dtype == torch.float16 and "loss_scale" in tensors:
            value, clean = tensors["loss_scale"].tolist()
            zero_state.write_loss_scale(self.engine.optimizer, value, int(clean))
        steps = {float(tensors[f"step.{n}"]) for n in self.weights if f"step.{n}" in tensors}
        if steps:
            self._make_moments(max(steps))
            self.link_moments()
        for name, weight in self.weights.items():
            if f"master.{name}" in tensors:
                self._set_full_tensor(weight, tensors[f"master.{name}"], None)
            for key in MOMENTS:
                if f"{key}.{name}" in tensors:
                    self._set_full_tensor(weight, tensors[f"{key}.{name}"], key)

    def _make_moments(self, steps: float) -> None:
        """AdamW makes them at its first step; here they are needed before it."""
        parts = [part for group in self.adamw.param_groups for part in group["params"]]
        if self.stage == 3:
            parts = zero_state.stage3_partitions(self.engine.optimizer)
        for part in parts:
            empty = {key: torch.zeros_like(part) for key in MOMENTS}
            self.adamw.state[part] = {"step": torch.tensor(steps), **empty}

    def link_moments(self) -> None:
        """Let weights find their moments, before and after DeepSpeed's first step."""
        if self.stage in (1, 2) and self.adamw.state:
            zero_state.link_moments(self.engine.optimizer)

    def _set_full_tensor(self, weight: Any, value: Tensor, key: str | None) -> None:
        """Copy a full tensor into the fp32 weight or a moment; each rank keeps its part."""
        if self.stage == 0:
            (self.adamw.state[weight][key] if key else weight).copy_(value)
        else:
            zero_state.set_full(weight, value, key, self.world.rank, self.world.size)

    def full_tensor(self, weight: Any, key: str | None) -> Tensor:
        """The full fp32 weight or one of its moments; all ranks call it together."""
        if self.stage == 0:
            return self.adamw.state[weight][key] if key else weight.detach()
        return zero_state.get_full(weight, key)


class _State(Mapping[str, Tensor]):
    """Each tensor is gathered when it is asked for."""

    def __init__(self, optimizer: ZeroOptimizer) -> None:
        self.optimizer = optimizer
        optimizer.link_moments()
        self.steps = [s["step"] for s in optimizer.adamw.state.values() if "step" in s]
        self.sources: dict[str, tuple[str, str | None]] = {}
        for name in optimizer.weights:
            if optimizer.dtype != torch.float32:
                self.sources[f"master.{name}"] = (name, None)
            for key in ("step", *MOMENTS) if self.steps else ():
                self.sources[f"{key}.{name}"] = (name, key)
        if optimizer.scale is not None:
            self.sources["loss_scale"] = ("", "loss_scale")

    def __getitem__(self, entry: str) -> Tensor:
        name, key = self.sources[entry]
        if key == "loss_scale":
            scale = self.optimizer.scale or LossScale()
            return torch.tensor([scale.value, scale.clean], dtype=torch.float64)
        if key == "step":
            return torch.tensor(float(self.steps[0]))
        return self.optimizer.full_tensor(self.optimizer.weights[name], key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


class FiniteAdamW(torch.optim.AdamW):
    """Takes no step on a gradient that is not finite. Stages 1 to 3 see to that before it."""

    def step(self, closure: Any = None) -> Any:
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        if all(bool(torch.isfinite(grad).all()) for grad in grads if grad is not None):
            super().step(closure)


def _engine(
    root: ForwardRoot,
    adamw: torch.optim.AdamW,
    config: Config,
    stage: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Any:
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import InitProcessGroupKwargs
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    zero_state.disable_shared_memory_collectives()
    reset_accelerate()
    plugin = DeepSpeedPlugin(
        hf_ds_config=deepspeed_config(config, stage, dtype), zero3_init_flag=False
    )
    # accelerate takes a CPU for one process unless it is told the backend.
    backend = InitProcessGroupKwargs(backend="gloo") if device.type == "cpu" else None
    accelerator = Accelerator(
        deepspeed_plugin=plugin, kwargs_handlers=None if backend is None else [backend]
    )
    engine, _ = accelerator.prepare(root, adamw)
    unset_hf_deepspeed_config()  # else every model that is loaded from now on is sharded
    return engine


def deepspeed_config(config: Config, stage: int, dtype: torch.dtype) -> dict[str, Any]:
    distributed = config.distributed
    zero: dict[str, Any] = {"stage": stage}
    bucket = distributed.bucket_size
    zero |= {"reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if stage == 3:
        zero["stage3_prefetch_bucket_size"] = min(bucket, PREFETCH)
    if distributed.offload_optimizer or config.optimizer.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if distributed.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optimizer.clip_norm,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
    }
    if dtype == torch.bfloat16:
        settings |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    if dtype == torch.float16:
        settings["fp16"] = {
            "enabled": True,
            "initial_scale_power": 16,
            "loss_scale_window": GROW_AFTER,
            "hysteresis": 1,
            "min_loss_scale": 1,
        }
    return settings
