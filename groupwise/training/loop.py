"""The loop around GRPO's step (step.py): logging, evaluation, checkpoints, signals."""

import logging
from typing import Any

from groupwise.diagnose import Watch
from groupwise.distributed.world import World
from groupwise.errors import EngineGoneError, Interrupted
from groupwise.load import Parts
from groupwise.rollout.collect import Rollout
from groupwise.tracking.base import Trackers
from groupwise.tracking.findings import note
from groupwise.tracking.run import RunFolder, read_metrics
from groupwise.training.checkpoint import replace_folder, save_checkpoint, save_model
from groupwise.training.clock import Clock, phase
from groupwise.training.metrics import rollout_metrics, staleness
from groupwise.training.rollouts import rollouts_for
from groupwise.training.signals import StopRequest
from groupwise.training.state import TrainState
from groupwise.training.step import Step, grpo_step

log = logging.getLogger("groupwise")


def run_loop(
    parts: Parts, state: TrainState, run: RunFolder, trackers: Trackers, stop: StopRequest
) -> None:
    """Train from where `state` stands to the last step."""
    config, world = parts.config, state.optimizer.world
    watch = Watch(config, read_metrics(run.path))
    rollouts = rollouts_for(parts, state)

    def save_and_leave_if_asked() -> None:
        if stop.agreed(world):
            with rollouts.settled():
                folder = save_checkpoint(state, run.checkpoints, config.checkpoint.keep)
            raise Interrupted(
                f"stopped by {stop.requested} after step {state.step}, saved to {folder}; "
                "the same command goes on from there"
            )

    def sample(parts: Parts, state: TrainState) -> Rollout:
        """The next rollout. Sampling takes long: a signal in the meantime is answered here."""
        try:
            state.pending.insert(0, rollouts.take())
        except EngineGoneError as error:
            raise _saved_first(error, parts, state, run) from error
        save_and_leave_if_asked()
        return state.pending.pop(0)

    while state.step < config.steps:
        with Clock() as clock:
            step = grpo_step(parts, state, sample)
            rollouts.follow()
            if config.eval.every and state.step % config.eval.every == 0:
                with phase("eval"), rollouts.up_to_date():
                    step.metrics.update(_evaluate(parts, state, run, world))
            state.seconds += clock.total
            line = _metrics_line(step, clock, parts, state)
        if world.first:
            _log(line, step, run, trackers, watch)
        save_and_leave_if_asked()
        if config.checkpoint.every and state.step % config.checkpoint.every == 0:
            with rollouts.settled():
                save_checkpoint(state, run.checkpoints, config.checkpoint.keep)
    rollouts.close()


def _metrics_line(step: Step, clock: Clock, parts: Parts, state: TrainState) -> dict[str, Any]:
    """What metrics.jsonl keeps of a step."""
    groups = step.batch.groups
    line = {"step": state.step, **step.metrics}
    line |= rollout_metrics(groups, step.drawn, parts.reward_weights)
    if parts.config.workers.apart:
        line |= staleness(groups, state.step - 1)
    return line | clock.metrics(groups)


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
    line: dict[str, Any], step: Step, run: RunFolder, trackers: Trackers, watch: Watch
) -> None:
    number, every = line["step"], run.config.tracking.rollouts
    if every and number % every == 0:
        run.log_rollouts(number, step.batch.stored_groups())
    run.log_metrics(line)
    trackers.log(number, line)
    note(watch.add(line), run.path)
