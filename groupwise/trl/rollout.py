"""Answers as TRL samples and scores them: a whole rollout, then every reward on all of it.

Our own loop scores a group while others are sampled; a reward function from a TRL script may rely
on seeing all answers of a rollout in one call.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import torch

from groupwise.config import Config
from groupwise.load import Parts
from groupwise.objective.assign import assign_advantages
from groupwise.objective.loss import Metrics, policy_loss
from groupwise.policy.forward import answer_logprobs
from groupwise.policy.packed_attention import use_packed_attention
from groupwise.policy.packing import microbatches
from groupwise.policy.reference import KLReference
from groupwise.rollout.groups import Prompted, Rollout
from groupwise.training.clock import phase
from groupwise.training.collect import next_problems
from groupwise.training.metrics import add_metrics, means
from groupwise.training.state import TrainState
from groupwise.training.update import rollout_batch
from groupwise.trl.environment import Pool
from groupwise.types import Group

log = logging.getLogger("groupwise")


def sample_rollout(parts: Parts, state: TrainState, pool: Pool | None = None) -> Rollout:
    """The scored groups of the step that comes next, by the policy's present weights."""
    state.publish(parts.engine)
    config = parts.config
    prompted = list(islice(next_problems(parts, state.cursor), config.batch.prompts))
    groups = sampled_groups(parts, prompted, config.batch.group_size, state.step, pool)
    return Rollout(groups, len(prompted))


def sampled_groups(
    parts: Parts,
    prompted: Sequence[Prompted],
    answers: int,
    step: int | str,
    pool: Pool | None,
) -> list[Group]:
    if pool is not None:
        pool.take_back()
    with phase("generate"):
        sampling = parts.config.rollout.sampling
        groups = parts.sample_groups(prompted, sampling, group_size=answers, step=step)
    if pool is not None:
        pool.find(groups)
    with phase("reward"):
        groups = parts.score(groups)
    _say_what_has_no_reward(groups)
    return groups


def _say_what_has_no_reward(groups: Sequence[Group]) -> None:
    for group in groups:
        for completion, reward in zip(group.completions, group.rewards, strict=True):
            if completion.scored and reward is None:
                row = {**group.problem.columns, "prompt": group.problem.prompt}
                log.warning(
                    "All reward functions returned None for the following kwargs:\n%s\n"
                    "Such answers are not learned from: let one function return a number",
                    {**row, "completion": completion.text},
                )
                return


@torch.no_grad()
def loss_of(
    parts: Parts, groups: Sequence[Group], reference: KLReference | None
) -> dict[str, float]:
    """The loss of answers that were just sampled, and what goes with it."""
    config, policy = parts.config, parts.policy
    objective, tokens = config.algorithm, config.batch.tokens_per_microbatch
    batch = rollout_batch(groups, config)
    if reference is not None:
        temperature = config.rollout.temperature
        batch = replace(batch, ref_logprobs_BT=reference.logprobs(batch, temperature, tokens))
    batch = assign_advantages(batch, objective, parts.reward_weights, None).counted()
    micros = list(microbatches(batch, policy.layout, tokens, policy.pad_id))
    denominator = replace(batch.denominator, microbatches=len(micros))
    loss, totals = 0.0, Metrics()
    for piece in micros:
        micro = replace(piece, denominator=denominator).to(policy.device)
        with use_packed_attention(policy.model, micro.rows):
            logprobs_BT, entropies_BT = answer_logprobs(
                policy, micro.rows, config.rollout.temperature
            )
        part, metrics = policy_loss(logprobs_BT, entropies_BT, micro, objective)
        loss += part.item()
        add_metrics(totals, metrics)
    return {"loss": loss, **means(totals)}


def entropy_weight(config: Config, state: TrainState) -> float | None:
    """Of the bonus; None where there is none."""
    return state.entropy_weight if config.algorithm.uses_entropy else None
