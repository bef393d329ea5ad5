"""Evaluations of a run, in the background of the steps that follow; the best model so far.

The line of an evaluated step in metrics.jsonl waits for its evaluation, and later ones wait with
it: lines are in order and whole, and trackers get each step once. A checkpoint waits for the
evaluation of earlier weights; that of its own step is begun again after a crash, so none is lost
and none is logged twice. With the engine in the trainer's own process and `timing: in_turn`, an
evaluation runs at once and the loop waits for it.
"""

import pathlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from groupwise.evaluate import Evaluation, evaluate_here
from groupwise.load import Parts
from groupwise.tracking.run import RunFolder
from groupwise.tracking.whole import remove, replace_folder
from groupwise.training.checkpoint import join_save, save_model
from groupwise.training.clock import phase
from groupwise.training.rollouts import Rollouts
from groupwise.training.state import TrainState

Line = dict[str, Any]


class Evaluations:
    """`state.held` are the lines that wait. `log(line)`, on rank 0, is where they go; callbacks are
    called with those that have their evaluation (`Callbacks.call`)."""

    def __init__(
        self,
        parts: Parts,
        state: TrainState,
        run: RunFolder,
        rollouts: Rollouts,
        log: Callable[[Line], None],
        call: Callable[..., None],
    ) -> None:
        self.parts, self.state, self.run, self.rollouts = parts, state, run, rollouts
        self.log, self.call = log, call
        self.world = state.optimizer.world
        self._running: Future[Line] | None = None
        self._step = 0
        self._candidate = run.path / "evaluated"
        """A copy of the model that is being evaluated, as training changes the policy meanwhile."""
        self._is_kept = False
        if state.held:
            self._begin()

    def begin_if_due(self) -> None:
        """Of the policy as it is after this step."""
        every = self.parts.config.eval.every
        if every and self.state.step % every == 0:
            with phase("eval"):
                self.finish()
                self._begin()

    def add(self, line: Line) -> None:
        """Log a step's line, as soon as no evaluation before it is running."""
        self.state.held.append(line)
        if self._running is None or self.world.broadcast(self._running.done()):
            self.finish()

    def finish_earlier(self) -> None:
        """Wait for an evaluation of earlier weights: it could not be begun again after a crash."""
        if self._step < self.state.step:
            self.finish()

    def finish(self) -> None:
        """Wait for what is being evaluated, and log all lines."""
        held, running = self.state.held, self._running
        if running is not None:
            self._running = None
            outcome = Evaluation(**self.parts.waiting.first_does(running.result))
            self._keep_best(outcome.metrics)
            held[0] |= {f"eval/{name}": value for name, value in outcome.metrics.items()}
            self.call("on_evaluate", held[0], self.run.path, step=self._step)
        while held:
            line = held.pop(0)
            if self.world.first:
                self.log(line)

    def _begin(self) -> None:
        parts = self.parts
        self._step = self.state.step
        self._running = self.rollouts.in_background(
            lambda: asdict(evaluate_here(parts, "validation"))
        )
        self._is_kept = not self.world.broadcast(self._running.done())
        if self._is_kept:
            self._save(self._candidate)

    def _keep_best(self, metrics: dict[str, float]) -> None:
        score, best = metrics.get("accuracy", metrics["reward"]), self.run.path / "best"
        if self.state.best is None or score > self.state.best:
            self.state.best = score
            if not self._is_kept:
                self._save(best)
            elif self.world.first:
                replace_folder(best, lambda aside: move_files(self._candidate, aside))
        if self.world.first:
            remove(self._candidate)

    def _save(self, target: pathlib.Path) -> None:
        if self.world.first:
            replace_folder(target, lambda folder: save_model(self.state, folder))
        else:
            join_save(self.state)


def move_files(folder: pathlib.Path, target: pathlib.Path) -> None:
    for path in folder.iterdir():
        path.replace(target / path.name)
