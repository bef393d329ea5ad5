"""The pieces of an update on groups, policy and optimizer alone, for tests that have no run."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from groupwise.batch import Denominator, make_batch
from groupwise.config import Config
from groupwise.distributed.world import ALONE, World
from groupwise.objective.loss import Metrics
from groupwise.policy.load import Policy
from groupwise.policy.logprobs import batch_logprobs
from groupwise.policy.reference import KLReference
from groupwise.training import update as package
from groupwise.training.memory_fit import TokenBudget
from groupwise.training.recorder import Recorder
from groupwise.training.state import TrainState
from groupwise.training.update import rollout_batch
from groupwise.types import Group


def plain_optimizer(world: World = ALONE) -> Any:
    """Leaves gradients where backward puts them."""

    def backward(loss: Tensor, last: bool) -> None:
        loss.backward()

    return SimpleNamespace(world=world, backward=backward)


def state_of(
    policy: Policy,
    optimizer: Any = None,
    reference: KLReference | None = None,
    budget: TokenBudget | None = None,
) -> TrainState:
    optimizer = optimizer or plain_optimizer()
    return TrainState(policy, optimizer, reference, budget=budget or TokenBudget())


def annotate(
    groups: Sequence[Group],
    policy: Policy,
    reference: KLReference | None,
    config: Config,
    budget: TokenBudget | None = None,
    world: World = ALONE,
) -> list[Group]:
    """The groups as they would be stored after `annotate`."""
    fitted = budget or TokenBudget(config.batch.tokens_per_microbatch, world)
    state = state_of(policy, plain_optimizer(world), reference, fitted)
    batch = rollout_batch(groups, config)
    return package.annotate(batch, state, config).stored_groups()


def update(
    groups: Sequence[Group],
    policy: Policy,
    optimizer: Any,
    config: Config,
    *,
    progress: int = 0,
    entropy_weight: float = 0.0,
    budget: TokenBudget | None = None,
    recorder: Recorder | None = None,
) -> dict[str, float]:
    fitted = budget or TokenBudget(config.batch.tokens_per_microbatch, optimizer.world)
    state = state_of(policy, optimizer, None, fitted)
    state.step = progress
    batch = rollout_batch(groups, config)
    return package.update(batch, state, config, entropy_weight, recorder)


def accumulate(
    groups: Sequence[Group],
    policy: Policy,
    config: Config,
    entropy_weight: float = 0.0,
    *,
    optimizer: Any = None,
    denominator: Denominator | None = None,
) -> Metrics | None:
    """The gradient of one optimizer step on these groups, or on these and those of other ranks."""
    batch = rollout_batch(groups, config)
    batch = replace(batch, denominator=denominator or batch.denominator)
    return package.accumulate(batch, state_of(policy, optimizer), config, entropy_weight)


Logprobs = dict[tuple[int, int], list[float]]
"""By (group, answer)."""


def policy_logprobs(
    policy: Policy,
    groups: Sequence[Group],
    temperature: float,
    tokens_at_once: int,
    layout: str | None = None,
) -> Logprobs:
    batch = make_batch(groups)
    logprobs_BT, _ = batch_logprobs(policy, batch, temperature, tokens_at_once, layout=layout)
    return dict(zip(batch.members, batch.unpadded(logprobs_BT), strict=True))


def reference_logprobs(
    reference: KLReference, groups: Sequence[Group], temperature: float, tokens_at_once: int
) -> Logprobs:
    batch = make_batch(groups)
    logprobs_BT = reference.logprobs(batch, temperature, tokens_at_once)
    return dict(zip(batch.members, batch.unpadded(logprobs_BT), strict=True))
