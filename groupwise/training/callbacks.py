"""User code that a run calls at certain events, and that may end the run.

    class Stop:
        def on_step(self, event):
            if event.metrics["reward"] > 0.95:
                event.stop("good enough")

    groupwise.train("demo", callbacks=[Stop()])

Unlike a tracker, which is told the metrics and may fail, a callback is part of the run: an error in
it ends the run. Where several processes train together each calls its own, with the same numbers.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from groupwise.distributed.world import World
from groupwise.errors import ConfigError, type_name
from groupwise.training.state import TrainState

MOMENTS = ("on_start", "on_step", "on_evaluate", "on_save", "on_end")


@dataclass(frozen=True)
class Event:
    """An event of a run. `metrics` are the step's or the evaluation's.

    Where an evaluation runs beside training, `on_evaluate` comes some steps after the one that was
    evaluated: `step` is that one, and `model` has been trained further.
    """

    step: int
    steps: int
    """Steps that the run is to have."""
    metrics: Mapping[str, Any]
    model: Any
    tokenizer: Any
    folder: pathlib.Path
    """The run's folder; of `on_save` the checkpoint's."""
    _asked: list[str] = field(default_factory=list, repr=False)

    def stop(self, reason: str = "a callback asked for it") -> None:
        """End the run after this step: with its last evaluation, model and report."""
        self._asked.append(str(reason))


class Callback(Protocol):
    """Any of on_start, on_step, on_evaluate, on_save and on_end; each gets an `Event`."""

    def on_step(self, event: Event) -> object: ...


class Callbacks:
    """All callbacks of a run. A plain function counts as `on_step`."""

    def __init__(self, callbacks: Sequence[Callback | Callable[[Event], object]] = ()) -> None:
        if not isinstance(callbacks, list | tuple):
            raise ConfigError(
                f"callbacks= takes a list of them, not {type_name(callbacks)}: put it in [ ]"
            )
        self._callbacks = [_checked(callback) for callback in callbacks]
        self._asked: list[str] = []

    def call(
        self,
        moment: str,
        metrics: Mapping[str, Any],
        folder: pathlib.Path,
        state: TrainState,
        steps: int,
        step: int | None = None,
    ) -> None:
        policy = state.policy
        number = state.step if step is None else step
        parts = (metrics, policy.model, policy.tokenizer, folder, self._asked)
        for callback in self._callbacks:
            method = getattr(callback, moment, None)
            if moment == "on_step" and method is None and not _has_moments(callback):
                method = callback
            if callable(method):
                method(Event(number, steps, *parts))

    def reason_to_stop(self, world: World) -> str | None:
        """The reason that a callback of any rank gave. A collective: all ranks call it together."""
        if not self._callbacks:
            return None
        return next((reasons[0] for reasons in world.gather(self._asked) if reasons), None)


def _has_moments(callback: object) -> bool:
    return any(hasattr(callback, moment) for moment in MOMENTS)


def _checked(callback: Any) -> Any:
    if isinstance(callback, type):
        raise ConfigError(f"callbacks= takes objects, not classes: {callback.__name__}()")
    if not _has_moments(callback) and not callable(callback):
        raise ConfigError(
            f"a callback has {', '.join(MOMENTS)} (some of them), or is a function of an event; "
            f"{type_name(callback)} is neither"
        )
    return callback
