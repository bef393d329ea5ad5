"""Learning rates and optimizers as transformers has them, on our optimizer with fp32 masters.

Rates are a function of the number of optimizer steps alone, so resume needs no scheduler state.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, get_scheduler

from groupwise.config import OptimizerSettings
from groupwise.errors import ConfigError, type_name
from groupwise.training.optim import Groups, MakeOptimizer, SetRates
from groupwise.trl.config import GRPOConfig, as_dict
from groupwise.trl.settings import Length

Given = tuple[Optimizer | None, Any]
"""TRL's `optimizers`: an optimizer, a scheduler, or None for either."""


def rates(args: GRPOConfig, length: Length, given: Any) -> SetRates:
    """`given`: a scheduler from `optimizers`, which must be a LambdaLR."""
    if given is None:
        total = length.max_steps
        probe = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        given = get_scheduler(
            args.lr_scheduler_type,
            optimizer=probe,
            num_warmup_steps=args.get_warmup_steps(total),
            num_training_steps=total,
            scheduler_specific_kwargs=as_dict(args.lr_scheduler_kwargs),
        )
    if not isinstance(given, LambdaLR):
        raise ConfigError(
            f"the scheduler is {type_name(given)}: only a LambdaLR says which rate an "
            "optimizer step has without being stepped through all steps before it"
        )
    factors: Sequence[Callable[[int], float]] = given.lr_lambdas

    def set_rates(optimizer: Optimizer, progress: float) -> float:
        step = round(progress * length.updates)
        for number, group in enumerate(optimizer.param_groups):
            factor = factors[number if len(factors) > 1 else 0]
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor(step)
        return optimizer.param_groups[0]["lr"]

    return set_rates


def optimizer_maker(
    args: GRPOConfig, given: Optimizer | None, model: torch.nn.Module
) -> MakeOptimizer | None:
    """None: AdamW as our settings have it. `given`: from `optimizers`, over the model's weights."""
    if given is not None:
        if any(p.dtype != torch.float32 for p in model.parameters() if p.requires_grad):
            raise ConfigError(
                "an optimizer of yours holds the model's own weights, and those are in half "
                "precision: small steps would be lost. Name one with optim=, or train in fp32"
            )
        return lambda groups, settings: given
    if args.optim in ("adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit"):
        return None

    def make(groups: Groups, settings: OptimizerSettings) -> Optimizer:
        kind, options = Trainer.get_optimizer_cls_and_kwargs(args)
        return kind([group for group in groups if group["params"]], **options)

    return make
