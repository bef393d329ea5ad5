"""The loop around GRPO's step (step.py): logging, evaluation, checkpoints, signals."""

import logging
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from groupwise.diagnose import Watch
from groupwise.environments.metrics import episode_metrics
from groupwise.errors import EngineGoneError, Interrupted
from groupwise.load import Parts
from groupwise.rollout.groups import Rollout
from groupwise.tracking.base import Trackers
from groupwise.tracking.findings import note
from groupwise.tracking.run import RunFolder, read_metrics
from groupwise.training.callbacks import Callbacks
from groupwise.training.checkpoint import save_checkpoint
from groupwise.training.clock import Clock
from groupwise.training.evaluations import Evaluations
from groupwise.training.metrics import rollout_metrics, staleness
from groupwise.training.rollouts import rollouts_for
from groupwise.training.signals import StopRequest
from groupwise.training.state import TrainState
from groupwise.training.step import Step, grpo_step
from groupwise.training.usage import Usage

log = logging.getLogger("groupwise")

NO_CALLBACKS = Callbacks()


def run_loop(
    parts: Parts,
    state: TrainState,
    run: RunFolder,
    trackers: Trackers,
    stop: StopRequest,
    callbacks: Callbacks = NO_CALLBACKS,
) -> str | None:
    """Train from where `state` stands to the last step; the reason where a callback ends it."""
    config, world = parts.config, state.optimizer.world
    watch, rollouts = Watch(config, read_metrics(run.path)), rollouts_for(parts, state)

    def save() -> pathlib.Path:
        evaluations.finish_earlier()
        with rollouts.ready_to_save():
            return save_checkpoint(state, run.checkpoints, config.checkpoint.keep)

    def save_and_leave_if_asked(*sampled: Rollout) -> None:
        if stop.agreed(world):
            state.pending[:0] = sampled
            raise Interrupted(
                f"stopped by {stop.requested} after step {state.step}, saved to {save()}; "
                "the same command goes on from there"
            )

    call = partial(callbacks.call, state=state, steps=config.steps)
    log_line = partial(log_step, run=run, trackers=trackers, watch=watch)
    evaluations = Evaluations(parts, state, run, rollouts, log_line, call)
    call("on_start", {}, run.path)
    reason = None
    with Usage() as usage:
        while state.step < config.steps and reason is None:
            with Clock() as clock:
                with saved_if_engine_is_gone(parts, state, run):
                    rollout = rollouts.take()
                save_and_leave_if_asked(rollout)  # sampling takes long
                if state.exchange is not None:
                    rollout = state.exchange.scatter(rollout, config.batch.minibatches)
                step = grpo_step(parts, state, rollout)
                rollouts.policy_updated()
                evaluations.begin_if_due()
                state.seconds += clock.total
                line = metrics_line(step, clock, parts, state) | usage.metrics()
            log_rollouts(step, state, run)
            evaluations.add(line)
            call("on_step", line, run.path)
            save_and_leave_if_asked()
            if config.checkpoint.every and state.step % config.checkpoint.every == 0:
                call("on_save", line, save())
            reason = callbacks.reason_to_stop(world)
    rollouts.close()
    evaluations.finish()
    call("on_end", {}, run.path)
    return reason


def metrics_line(step: Step, clock: Clock, parts: Parts, state: TrainState) -> dict[str, Any]:
    """The step's line of metrics.jsonl."""
    groups, world = step.batch.groups, state.optimizer.world
    line = {"step": state.step, **step.metrics}
    line |= rollout_metrics(groups, step.drawn, parts.reward_weights, world)
    if parts.episodes is not None:
        line |= episode_metrics(groups, world)
    if parts.config.timing.kind != "in_turn":
        line |= staleness(groups, state.step - 1, world)
    tokens = sum(c.length for group in groups for c in group.completions)
    return line | clock.metrics(sum(world.gather(tokens)))


def log_rollouts(step: Step, state: TrainState, run: RunFolder) -> None:
    """Write the step's rollout file, if one is due. All ranks take part; rank 0 writes it."""
    every = run.config.tracking.rollouts
    if not every or state.step % every:
        return
    batch = step.batch
    own = Rollout(batch.stored_groups(), step.drawn, batch.group_indices, batch.group_total)
    whole = [own] if state.exchange is None else state.exchange.gather([own])
    if groups := [group for rollout in whole for group in rollout.groups]:
        run.log_rollouts(state.step, groups)


@contextmanager
def saved_if_engine_is_gone(parts: Parts, state: TrainState, run: RunFolder) -> Iterator[None]:
    """Save a checkpoint when the engine is gone: the step that it was to sample has not begun."""
    try:
        yield
    except EngineGoneError as error:
        if parts.config.timing.max_staleness or state.optimizer.world.size > 1:
            # Answers by older weights are missing, or other ranks are not at the same point.
            raise EngineGoneError(f"{error}: it goes on from the last checkpoint") from error
        folder = save_checkpoint(state, run.checkpoints, parts.config.checkpoint.keep)
        raise EngineGoneError(f"{error}: it goes on from {folder}") from error


def log_step(line: dict[str, Any], run: RunFolder, trackers: Trackers, watch: Watch) -> None:
    """Write a step's metrics to the run folder and the trackers, and note new findings."""
    run.log_metrics(line)
    trackers.log(line["step"], line)
    note(watch.add(line), run.path)
