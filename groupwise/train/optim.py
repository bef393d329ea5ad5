"""AdamW on fp32 master weights, the learning-rate schedule, and their state as plain tensors.

A bf16 policy cannot take small steps: 1 + 1e-3 is 1 in bf16. So the optimizer owns an fp32 copy of
every trainable weight, adds up gradients in fp32 as the backward pass produces them, and rounds the
result back into the policy. For an fp32 policy the masters are the weights themselves.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from groupwise.config import OptimizerSettings


class Optimizer:
    def __init__(self, model: nn.Module, settings: OptimizerSettings, total_steps: int) -> None:
        self.settings = settings
        self.total_steps = total_steps
        self.updates = 0
        self.weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters = {name: _master(p) for name, p in self.weights.items()}
        for name, weight in self.weights.items():
            if self.masters[name] is not weight:
                weight.register_post_accumulate_grad_hook(self._into(self.masters[name]))
        decayed = [m for m in self.masters.values() if m.ndim >= 2]
        plain = [m for m in self.masters.values() if m.ndim < 2]
        self.adamw = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": settings.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
        )

    @staticmethod
    def _into(master: Tensor):
        """A hook that moves a weight's fresh gradient into its master's, in fp32."""

        def accumulate(weight: Tensor) -> None:
            assert weight.grad is not None
            if master.grad is None:
                master.grad = weight.grad.to(master.dtype)
            else:
                master.grad += weight.grad
            weight.grad = None

        return accumulate

    @torch.no_grad()
    def step(self, progress: int) -> tuple[float, float]:
        """Clip, update, forget the gradients. Returns the norm before clipping, and the lr."""
        lr = learning_rate(self.settings, progress, self.total_steps)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        norm = nn.utils.clip_grad_norm_(self.masters.values(), self.settings.clip_norm)
        if torch.isfinite(norm):  # one bad batch must not poison the weights for good
            self.adamw.step()
            for name, weight in self.weights.items():
                if self.masters[name] is not weight:
                    weight.copy_(self.masters[name])
            self.updates += 1
        self.forget()
        return norm.item(), lr

    def forget(self) -> None:
        """Drop the gradients."""
        self.adamw.zero_grad(set_to_none=True)
        for weight in self.weights.values():
            weight.grad = None

    def state(self) -> dict[str, Tensor]:
        """Moments, counts and (for bf16) masters by parameter name, fit for safetensors."""
        tensors: dict[str, Tensor] = {}
        for name, master in self.masters.items():
            if master is not self.weights[name]:
                tensors[f"master.{name}"] = master.detach()
            for key, value in self.adamw.state.get(master, {}).items():
                tensors[f"{key}.{name}"] = torch.as_tensor(value)
        return tensors

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, master in self.masters.items():
            if f"master.{name}" in tensors:
                master.copy_(tensors[f"master.{name}"])
            if f"exp_avg.{name}" in tensors:
                self.adamw.state[master] = {
                    "step": tensors[f"step.{name}"].clone(),
                    "exp_avg": tensors[f"exp_avg.{name}"].to(master),
                    "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(master),
                }


def _master(parameter: Tensor) -> Tensor:
    half = parameter.dtype in (torch.bfloat16, torch.float16)
    return parameter.detach().float().clone() if half else parameter


def learning_rate(settings: OptimizerSettings, step: int, total: int) -> float:
    """The rate for step 0, 1, ...: linear warm-up, then constant, linear or cosine down to 0."""
    warmup = settings.warmup if settings.warmup >= 1 else settings.warmup * total
    if step < warmup:
        return settings.lr * (step + 1) / (math.floor(warmup) + 1)
    share = min((step - warmup) / max(total - warmup, 1), 1.0)
    factor = {
        "constant": 1.0,
        "linear": 1 - share,
        "cosine": 0.5 * (1 + math.cos(math.pi * share)),
    }[settings.schedule]
    return settings.lr * factor
