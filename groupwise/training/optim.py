"""AdamW on fp32 master weights, the learning-rate schedule, and their state as plain tensors.

A half-precision policy cannot take small steps: 1 + 1e-3 is 1 in bf16. So the optimizer owns an
fp32 copy of every trainable weight, adds up gradients in fp32 as the backward pass produces them,
and rounds the result back into the policy. For an fp32 policy the masters are the weights
themselves. With `offload` masters, gradients and moments live in CPU memory and the step is taken
there; with `adamw_8bit` the moments are bitsandbytes' 8-bit ones.

Several ranks that each hold the whole model (ddp) sum their gradients here, once an optimizer step
and in fp32, whatever the precision of the model. Unlike torch's DistributedDataParallel that leaves
ranks free to make different numbers of passes, and no gradient is rounded to be sent. Where ranks
share one model (fsdp2) weights are sharded fp32 DTensors, and so are gradients and moments.
"""

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from groupwise.config import OptimizerSettings
from groupwise.distributed.world import ALONE, World
from groupwise.errors import MissingExtraError
from groupwise.extensions import load_object
from groupwise.policy.weights import copy_into
from groupwise.training.loss_scale import LossScale

HAS_TRITON = importlib.util.find_spec("triton") is not None

# The optimizer state that is saved for each weight. Of a user's optimizer: every number and tensor.
MOMENTS = {
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "adamw_8bit": ("step", "state1", "state2", "absmax1", "absmax2", "qmap1", "qmap2"),
}


Groups = list[dict[str, Any]]
"""torch.optim's parameter groups."""
MakeOptimizer = Callable[[Groups, OptimizerSettings], torch.optim.Optimizer]
"""How an optimizer is made: ours, or one of the user's (`optimizer.kind=file.py:function`)."""
SetRates = Callable[[torch.optim.Optimizer, float], float]
"""Sets the learning rates for an optimizer step, and returns the one to report. It gets how many
rollouts have been learned from: n + 1/4 in the second of four optimizer steps on a rollout."""


class TrainingOptimizer(Protocol):
    """What a training step needs of an optimizer: this module's, or DeepSpeed's (zero.py)."""

    world: World

    @property
    def scale(self) -> LossScale | None: ...

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add the loss's gradient to what is there; `last`: no more of it before the step."""
        ...

    def step(self, progress: float) -> tuple[float, float]: ...

    def end_training_step(self, done: int, model: nn.Module) -> None:
        """After the optimizer steps on a rollout; `done` of them have been learned from. Of a
        sharded model the present weights are copied into the full one."""
        ...

    def zero_grad(self) -> None: ...

    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Of a sharded model each trained weight whole, in the precision of the model, one after
        the other. All ranks read them together."""
        ...

    def state(self) -> Mapping[str, Tensor]:
        """By name. Reading a sharded tensor is a collective: all ranks read in the same order."""
        ...

    def load(self, tensors: Mapping[str, Tensor]) -> None: ...


class Optimizer:
    """`computed_in` is the precision of passes where weights are sharded, and so in fp32."""

    def __init__(
        self,
        model: nn.Module,
        settings: OptimizerSettings,
        total_steps: int,
        world: World = ALONE,
        computed_in: torch.dtype | None = None,
        make: MakeOptimizer | None = None,
    ) -> None:
        self.settings = settings
        self.total_steps = total_steps
        self.world = world
        self.updates = 0
        self.sharded, self.computed_in = computed_in is not None, computed_in
        self.weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {name: _master(p, settings.offload) for name, p in self.weights.items()}
        for name, weight in self.weights.items():
            if self.masters[name] is not weight:
                weight.register_post_accumulate_grad_hook(self._accumulate_into(self.masters[name]))
        self.means: dict[str, Tensor] = {}
        """Of the weights after the last `averaged` steps, where the final ones are their mean."""
        self.averaged = 0
        self.inner = (make or _maker(settings))(
            parameter_groups(list(self.masters.values()), settings), settings
        )
        self.set_rates: SetRates = self._follow_schedule
        self.kept_state = None if make is not None else MOMENTS.get(settings.kind)
        """What is kept of the state of a weight; None: every number and tensor."""
        dtypes = {computed_in} if computed_in else {w.dtype for w in self.weights.values()}
        self.scale = LossScale() if torch.float16 in dtypes else None
        self.rounds = computed_in not in (None, torch.float32)
        """Whether the weights here are fp32 masters, and those that are saved are rounded ones."""

    @property
    def loss_scale(self) -> float:
        """What the loss is to be multiplied by before its backward pass."""
        return 1.0 if self.scale is None else self.scale.value

    @staticmethod
    def _accumulate_into(master: Tensor):
        """A hook that adds a weight's new gradient to its master's, in fp32."""

        def accumulate(weight: Tensor) -> None:
            assert weight.grad is not None
            if master.grad is None:
                master.grad = weight.grad.to(master.device, master.dtype)
            else:
                _add_into(master.grad, weight.grad)
            weight.grad = None

        return accumulate

    def backward(self, loss: Tensor, last: bool = True) -> None:
        # FSDP averages over ranks what has to be added up.
        factor = self.loss_scale * (self.world.size if self.sharded else 1)
        (loss * factor if factor != 1 else loss).backward()

    @torch.no_grad()
    def step(self, progress: float) -> tuple[float, float]:
        """Clip, update, drop the gradients. Returns the norm before clipping, and the lr."""
        if not self.sharded and self.world.size > 1:
            self._sum_over_ranks()
        lr = self.set_rates(self.inner, progress)
        if self.loss_scale != 1:
            for master in self.masters.values():
                if master.grad is not None:
                    master.grad /= self.loss_scale
        grads = [master.grad for master in self.masters.values() if master.grad is not None]
        norm = full_tensor(nn.utils.get_total_norm(grads))
        nn.utils.clip_grads_with_norm_(self.masters.values(), self.settings.clip_norm, norm)
        finite = bool(torch.isfinite(norm))
        if finite:  # else one bad batch would leave NaN in the weights
            self.inner.step()
            self._round_masters()
            self.updates += 1
        if self.scale is not None:
            self.scale.after_step(finite)
        self.zero_grad()
        return norm.item(), lr

    @torch.no_grad()
    def end_training_step(self, done: int, model: nn.Module) -> None:
        if done > self.total_steps - math.floor(in_steps(self.settings.average, self.total_steps)):
            self._average(done)
        else:  # what a run that was to end earlier had begun
            self.means, self.averaged = {}, 0
        if self.sharded:
            copy_weights(model, self.full_weights())

    def _average(self, done: int) -> None:
        """Count the weights in their mean. After the last step of all it takes their place."""
        self.averaged += 1
        for name, master in self.masters.items():
            if name in self.means:
                self.means[name].lerp_(master, 1 / self.averaged)
            else:
                self.means[name] = master.detach().clone()
        if done >= self.total_steps:
            for name, mean in self.means.items():
                self.masters[name].copy_(mean)
            self.means, self.averaged = {}, 0
            self._round_masters()

    def _round_masters(self) -> None:
        """Into the policy."""
        for name, weight in self.weights.items():
            if self.masters[name] is not weight:
                weight.copy_(self.masters[name], non_blocking=True)

    def _follow_schedule(self, inner: torch.optim.Optimizer, progress: float) -> float:
        """All optimizer steps of a rollout have the same rate."""
        lr = learning_rate(self.settings, math.floor(progress), self.total_steps)
        for group in inner.param_groups:
            group["lr"] = lr
        return lr

    def _sum_over_ranks(self) -> None:
        """Sum gradients. A weight that has no gradient on any rank stays without one."""
        masters = list(self.masters.values())
        has_grad = self.world.gather([master.grad is not None for master in masters])
        reduced = [master for master, *flags in zip(masters, *has_grad, strict=True) if any(flags)]
        for master in reduced:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        self.world.all_reduce([master.grad for master in reduced if master.grad is not None])

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self.inner.zero_grad(set_to_none=True)
        for weight in self.weights.values():
            weight.grad = None

    @torch.no_grad()
    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self.weights.items():
            yield name, full_tensor(weight.detach()).to(self.computed_in)

    def state(self) -> dict[str, Tensor]:
        """Moments, counts, masters and loss scale by parameter name, fit for safetensors.

        Of sharded weights these are DTensors: `full_tensor()` gathers one.
        """
        tensors: dict[str, Tensor] = {}
        for name, master in self.masters.items():
            if master is not self.weights[name] or self.rounds:
                tensors[f"master.{name}"] = master.detach()
            if name in self.means:
                tensors[f"mean.{name}"] = self.means[name]
            state = self.inner.state.get(master, {})
            for key in self.kept_state or state:
                if isinstance(state.get(key), Tensor | int | float):
                    value = torch.as_tensor(state[key])
                    tensors[f"{key}.{name}"] = value.clone() if key.startswith("qmap") else value
        if self.averaged:
            tensors["averaged"] = torch.tensor(self.averaged)
        if self.scale is not None:
            numbers = [self.scale.value, self.scale.clean]
            tensors["loss_scale"] = torch.tensor(numbers, dtype=torch.float64)
        return tensors

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        others = {"master", "mean", "averaged", "loss_scale"}
        saved = sorted({name.partition(".")[0] for name in tensors} - others)
        for name, master in self.masters.items():
            if f"master.{name}" in tensors:
                master.copy_(_distributed_like(tensors[f"master.{name}"], master))
            if f"mean.{name}" in tensors:
                self.means[name] = _distributed_like(tensors[f"mean.{name}"], master)
            keys = self.kept_state or saved
            state = {k: tensors[f"{k}.{name}"] for k in keys if f"{k}.{name}" in tensors}
            if state:
                self.inner.state[master] = {
                    key: self._restored(key, tensor, master) for key, tensor in state.items()
                }
        if "averaged" in tensors:
            self.averaged = int(tensors["averaged"])
        if self.scale is not None and "loss_scale" in tensors:
            value, clean = tensors["loss_scale"].tolist()
            self.scale = LossScale(value, int(clean))

    def _restored(self, key: str, value: Tensor, master: Tensor) -> Tensor | int:
        if key == "step":  # bitsandbytes counts in Python, torch on the device
            eight = self.settings.kind == "adamw_8bit"
            return int(value) if eight else value.to(master.device, copy=True)
        return _distributed_like(value, master)


def copy_weights(model: nn.Module, weights: Iterator[tuple[str, Tensor]]) -> None:
    """Copy weights into a full copy of a sharded model, unless its memory was freed."""
    full = dict(model.named_parameters())
    if not any(weight.is_meta for weight in full.values()):
        copy_into(full, weights)


def full_tensor(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _distributed_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A full tensor as `like` has it: on its device, and of a sharded one this rank's shard."""
    if not isinstance(like, DTensor):
        return tensor.to(like.device)
    full = tensor.to(like.to_local().device)
    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None)


def _master(parameter: Tensor, offload: bool) -> Tensor:
    if offload:
        master = parameter.detach().to("cpu", torch.float32, copy=True)
        return master.pin_memory() if parameter.is_cuda else master
    half = parameter.dtype in (torch.bfloat16, torch.float16)
    return parameter.detach().float().clone() if half else parameter


def _add_into(total: Tensor, part: Tensor) -> None:
    """total += part, which may be in half precision and on another device."""
    in_order = total.is_contiguous() and part.is_contiguous()
    if HAS_TRITON and total.is_cuda and part.is_cuda and in_order:
        from groupwise.training.gradient_kernel import add_into

        add_into(total, part)
    else:
        total += part.to(total.device)


def parameter_groups(weights: list[Any], settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Weight decay for matrices, none for norms and biases."""
    return [
        {"params": [w for w in weights if w.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
    ]


def _maker(settings: OptimizerSettings) -> MakeOptimizer:
    if ":" in settings.kind:
        return load_object(settings.kind, what="optimizer.kind")
    return {"adamw": _adamw, "adamw_8bit": _adamw_8bit}[settings.kind]


def _adamw(groups: Groups, settings: OptimizerSettings) -> torch.optim.Optimizer:
    # Fused: AdamW is limited by memory bandwidth, and this reads memory once, not ten times.
    fused = all(w.device.type in ("cpu", "cuda") for group in groups for w in group["params"])
    shared: dict[str, Any] = {"lr": settings.lr, "betas": settings.betas, "eps": settings.eps}
    return torch.optim.AdamW(groups, **shared, fused=True if fused else None)


def _adamw_8bit(groups: Groups, settings: OptimizerSettings) -> Any:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError("bitsandbytes", "quant")
    from bitsandbytes.optim import AdamW8bit

    shared: dict[str, Any] = {"lr": settings.lr, "betas": settings.betas, "eps": settings.eps}
    return AdamW8bit([group for group in groups if group["params"]], **shared)


def in_steps(setting: float, total: int) -> float:
    """What is given as a number of steps or, below 1, as a share of all."""
    return setting if setting >= 1 else setting * total


def learning_rate(settings: OptimizerSettings, step: int, total: int) -> float:
    """The rate for step 0, 1, ...: linear warm-up, then constant, linear or cosine down to 0."""
    warmup = in_steps(settings.warmup, total)
    if step < warmup:
        return settings.lr * (step + 1) / (math.floor(warmup) + 1)
    share = min((step - warmup) / max(total - warmup, 1), 1.0)
    factor = {
        "constant": 1.0,
        "linear": 1 - share,
        "cosine": 0.5 * (1 + math.cos(math.pi * share)),
    }[settings.schedule]
    return settings.lr * factor
