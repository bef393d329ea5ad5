"""The GRPO loop. Read this, step.py and objective/ to know what groupwise does.

A step samples a group of answers to each of N questions, scores them, turns scores into advantages
within each group, and takes gradient steps on the answers. Everything random is keyed by the step
number, so running a step again gives the same result: that is what makes resume exact.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from groupwise.config import Config
from groupwise.diagnose import Watch
from groupwise.distributed.world import World
from groupwise.errors import EngineGoneError, Interrupted
from groupwise.load import Parts
from groupwise.objective.advantages import advantages
from groupwise.objective.entropy import adapt_entropy_weight, applied_entropy_weight
from groupwise.rollout.collect import (
    Collected,
    Prompted,
    collect,
    reward_weights,
    sample_groups,
    score_groups,
    share_groups,
)
from groupwise.rollout.noise import answer_key
from groupwise.tracking.base import Trackers
from groupwise.tracking.findings import note
from groupwise.tracking.run import RunFolder, read_metrics
from groupwise.training.checkpoint import replace_folder, save_checkpoint, save_model
from groupwise.training.clock import Clock
from groupwise.training.memory_fit import TokenBudget
from groupwise.training.metrics import rollout_metrics, staleness
from groupwise.training.rollouts import rollouts_for
from groupwise.training.sampler import draw
from groupwise.training.signals import StopRequest
from groupwise.training.state import TrainState
from groupwise.training.step import Seen, annotate, update
from groupwise.types import Group

log = logging.getLogger("groupwise")


def run_loop(
    parts: Parts, state: TrainState, run: RunFolder, trackers: Trackers, stop: StopRequest
) -> None:
    """Train from where `state` stands to the last step."""
    config, world = parts.config, state.optimizer.world
    weights = reward_weights(parts.scorer, config.rollout)
    together = state.shards is not None
    budget = TokenBudget(config.batch.tokens_per_microbatch, world, together)
    watch = Watch(config, read_metrics(run.path))
    rollouts = rollouts_for(config, state, parts.engine, partial(collect_step, parts))
    while state.step < config.steps:
        clock = Clock()
        try:
            collected = rollouts.take(clock)
        except EngineGoneError as error:
            raise _saved_first(error, parts, state, run) from error
        if stop.agreed(world):
            state.pending.insert(0, collected)
            with rollouts.settled():
                _save_and_leave(state, run, config.checkpoint.keep, stop)
        with clock.phase("logprobs"):
            groups = annotate(
                collected.groups, state.learner, state.reference, config, budget, world
            )
        groups = advantages(groups, config.algorithm, weights)
        with clock.phase("update"):
            metrics = learn(state, groups, config, budget)
        state.cursor += collected.drawn
        if state.reference is not None:
            state.reference.refresh(parts.policy, state.step)
        rollouts.follow()

        if config.eval.every and state.step % config.eval.every == 0:
            with clock.phase("eval"), rollouts.up_to_date():
                metrics |= _evaluate(parts, state, run, world)
        state.seconds += clock.total
        rolled = rollout_metrics(groups, collected.drawn, weights)
        if config.workers.apart:
            rolled |= staleness(groups, state.step - 1)
        line = {"step": state.step, **metrics, **rolled, **clock.metrics(groups)}
        if world.first:
            _log(line, groups, run, trackers, watch)
        if stop.agreed(world):
            with rollouts.settled():
                _save_and_leave(state, run, config.checkpoint.keep, stop)
        if config.checkpoint.every and state.step % config.checkpoint.every == 0:
            with rollouts.settled():
                save_checkpoint(state, run.checkpoints, config.checkpoint.keep)
    rollouts.close()


def learn(
    state: TrainState,
    groups: Sequence[Group],
    config: Config,
    budget: TokenBudget | None = None,
    observe: Callable[[Seen], None] | None = None,
) -> dict[str, float]:
    """The optimizer steps on one rollout. Moves weights, moments, entropy weight and step count."""
    seed = answer_key(config.seed, "step", state.step) >> 1  # for dropout, if any
    torch.manual_seed(seed + state.optimizer.world.rank)
    objective = config.algorithm
    metrics = update(
        groups,
        state.learner,
        state.optimizer,
        config,
        progress=state.step,
        entropy_weight=applied_entropy_weight(state.entropy_weight, state.entropy, objective),
        budget=budget,
        observe=observe,
    )
    state.optimizer.fill(state.policy.model)
    state.step += 1
    if "entropy" in metrics:
        state.entropy = metrics["entropy"]
        state.entropy_weight = adapt_entropy_weight(state.entropy_weight, state.entropy, objective)
    return metrics


def collect_step(parts: Parts, step: int, cursor: int, clock: Clock) -> Collected:
    """The step's groups, scored. What is drawn depends on the data position and the step alone.

    Each rank samples and scores the answers to its share of the problems.
    """
    config = parts.config

    def draw_problems(count: int) -> list[Prompted]:
        nonlocal cursor
        problems = draw(parts.problems["train"], cursor, count, config.seed)
        cursor += count
        return problems

    def sample(problems: list[Prompted]) -> list[Group]:
        with clock.phase("generate"):
            groups = sample_groups(
                problems,
                parts.engine,
                parts.policy,
                config.rollout.sampling,
                group_size=config.batch.group_size,
                seed=config.seed,
                step=step,
                temperatures=config.rollout.temperature_spread,
            )
        with clock.phase("reward"):
            return score_groups(groups, parts.scorer, config.rollout)

    def sample_all(problems: list[Prompted]) -> list[Group]:
        return share_groups(parts.world, problems, sample)

    return collect(draw_problems, sample_all, config.batch.prompts, config.rollout.max_draws)


def _save_and_leave(state: TrainState, run: RunFolder, keep: int, stop: StopRequest) -> None:
    folder = save_checkpoint(state, run.checkpoints, keep)
    raise Interrupted(
        f"stopped by {stop.requested} after step {state.step}, saved to {folder}; "
        "the same command goes on from there"
    )


def _saved_first(
    error: EngineGoneError, parts: Parts, state: TrainState, run: RunFolder
) -> EngineGoneError:
    """The error, after what was trained so far is saved: the step that it ended had not begun."""
    if parts.config.workers.staleness or parts.world.size > 1:
        # What older weights owed is not there, or others are in the middle of something.
        return EngineGoneError(f"{error}: it goes on from the last checkpoint")
    folder = save_checkpoint(state, run.checkpoints, parts.config.checkpoint.keep)
    return EngineGoneError(f"{error}: it goes on from {folder}")


def _evaluate(parts: Parts, state: TrainState, run: RunFolder, world: World) -> dict[str, float]:
    """Validation metrics; the best model so far is kept in best/."""
    metrics = parts.evaluate("validation").metrics
    score = metrics.get("accuracy", metrics["reward"])
    if state.best is None or score > state.best:
        state.best = score
        if world.first:
            replace_folder(run.path / "best", lambda folder: save_model(parts.policy, folder))
    return {f"eval/{name}": value for name, value in metrics.items()}


def _log(
    line: dict[str, Any], groups: list[Group], run: RunFolder, trackers: Trackers, watch: Watch
) -> None:
    step, every = line["step"], run.config.tracking.rollouts
    if every and step % every == 0:
        run.log_rollouts(step, groups)
    run.log_metrics(line)
    trackers.log(step, line)
    note(watch.add(line), run.path)
