import dataclasses

import pytest
import torch

from groupwise.config import OptimizerSettings
from groupwise.errors import ModelError
from groupwise.policy.load import Policy
from groupwise.recipe import parse
from groupwise.training.memory_fit import TokenBudget
from groupwise.training.optim import Optimizer
from small_models import random_groups, random_policy
from updates import annotate, update


def with_memory_for(policy: Policy, tokens: int) -> Policy:
    """A policy whose backward pass runs out of memory above so many tokens at once."""
    body = policy.body

    def small(**inputs: torch.Tensor) -> torch.Tensor:
        hidden = body(**inputs)

        def fail(gradient: torch.Tensor) -> torch.Tensor:
            if inputs["input_ids"].numel() > tokens:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            return gradient

        # Fail after the head's gradient is there, so that a half-done backward must be undone.
        if hidden.requires_grad:
            hidden.register_hook(fail)
        return hidden

    return dataclasses.replace(policy, body=small)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_that_runs_out_of_memory_goes_on_with_the_same_gradient(dtype: torch.dtype) -> None:
    groups = random_groups(6, 4, seed=1)
    norms, weights = [], []
    for memory in (10_000, 60):
        policy = random_policy(dtype=dtype)
        optimizer = Optimizer(policy.model, OptimizerSettings(lr=1e-2), 10)
        budget = TokenBudget(10_000)
        config = parse({}, ["batch.epochs=2"])
        scored = annotate(groups, policy, None, config, budget)
        metrics = update(
            scored,
            with_memory_for(policy, memory),
            optimizer,
            config,
            progress=0,
            entropy_weight=0.0,
            budget=budget,
        )
        norms.append(metrics["grad_norm"])
        weights.append(torch.cat([m.flatten() for m in optimizer.masters.values()]))
    assert budget.tokens <= 60 < 10_000
    assert norms[0] == pytest.approx(norms[1], rel=1e-5 if dtype == torch.float32 else 0.02)
    if dtype == torch.float32:  # Adam's first steps turn rounding near 0 into a whole step
        assert (weights[0] - weights[1]).abs().max() < 1e-5


def test_a_row_that_can_never_fit_is_an_error_with_the_fix() -> None:
    policy = with_memory_for(random_policy(), 1)
    optimizer = Optimizer(policy.model, OptimizerSettings(), 10)
    with pytest.raises(ModelError, match="gradient_checkpointing"):
        update(random_groups(2, 3), policy, optimizer, parse({}), progress=0, entropy_weight=0.0)


def test_other_errors_are_not_taken_for_memory() -> None:
    def broken(tokens: int) -> None:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        TokenBudget(100).fit(broken, lambda: None, 1)
