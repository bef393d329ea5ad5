"""Evaluations beside training: by the weights of their step, and logged once, whatever dies."""

import asyncio
import pathlib
import signal
import time
from collections.abc import Sequence
from typing import Any

import pytest

from fake_workers import FakeWorkers
from groupwise.batch import Batch
from groupwise.config import Config
from groupwise.tracking.run import read_metrics
from groupwise.training import step as training_step
from groupwise.training.api import train
from groupwise.training.callbacks import Event
from groupwise.training.state import TrainState
from groupwise.types import Completion, Request, Sampling
from runs import fingerprint, small_config, use_workers
from test_resume import attempt

STEPS = 4
TIMINGS = {
    "in_turn": "timing=in_turn",
    "ahead": "timing.max_staleness=1",
    "ahead, published every second update": "timing={max_staleness: 2, publish_every: 2}",
    "in_flight": "timing.kind=in_flight",
}
FAST = ("in_turn", "ahead")
timings = pytest.mark.parametrize(
    "timing",
    [
        pytest.param(timing, id=name, marks=[pytest.mark.slow] * (name not in FAST))
        for name, timing in TIMINGS.items()
    ],
)
learning = -1
"""The last step, from 0, that the trainer has begun to learn from."""


class SlowToEvaluate(FakeWorkers):
    """Greedy answers, which evaluations alone ask for, are as long as the weights have updates;
    they come when the trainer has gone on to the next step."""

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        if sampling.temperature > 0:
            return await super().sample(request, sampling)
        version, deadline = self.version or 0, time.monotonic() + 20
        while 0 < version < STEPS and learning < version:
            assert time.monotonic() < deadline, "training did not go on"
            await asyncio.sleep(0.005)
        assert version == (self.version or 0), "weights changed in the middle of an evaluation"
        tokens, logprobs = (7,) * (1 + version), (-1.0,) * (1 + version)
        return (Completion(tokens, logprobs, "length", "", version),) * len(request.keys)


def note_steps(patch: pytest.MonkeyPatch) -> None:
    use_workers(patch, SlowToEvaluate)
    learn = training_step.learn

    def noted(batch: Batch, state: TrainState, *rest: Any) -> dict[str, float]:
        global learning
        learning = state.step
        return learn(batch, state, *rest)

    patch.setattr(training_step, "learn", noted)


@pytest.fixture(autouse=True)
def _noted(monkeypatch: pytest.MonkeyPatch) -> None:
    note_steps(monkeypatch)


def config_for(timing: str, *more: str) -> Config:
    return small_config(f"steps={STEPS}", "place.count=1", timing, "rollout.overlong_buffer=16",
                        "eval.k=1", "eval.every=2", "checkpoint.every=2", *more)  # fmt: skip


class Heard:
    def __init__(self) -> None:
        self.evaluated: list[tuple[int, float]] = []
        self.steps: list[int] = []

    def on_step(self, event: Event) -> None:
        self.steps.append(event.step)

    def on_evaluate(self, event: Event) -> None:
        self.evaluated.append((event.step, event.metrics["eval/tokens"]))


@timings
def test_an_evaluation_is_by_the_weights_of_its_step_while_training_goes_on(
    timing: str, tmp_path: pathlib.Path
) -> None:
    heard = Heard()
    train(config_for(timing), tmp_path / "run", callbacks=[heard], quiet=True)
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == heard.steps == list(range(1, STEPS + 1))
    measured = {line["step"]: line.get("eval/tokens") for line in lines}
    assert measured == {1: None, 2: 3.0, 3: None, 4: 5.0}
    assert heard.evaluated == [(2, 3.0), (4, 5.0)]
    assert not (tmp_path / "run" / "evaluated").exists()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("ahead") / "run"
    with pytest.MonkeyPatch.context() as context:
        note_steps(context)
        train(config_for(TIMINGS["ahead"]), folder, quiet=True)
    return folder


# Of two evaluations: begun, ended, their model kept, their step logged.
MOMENTS = [
    ("groupwise.tracking.run:RunFolder.log_metrics", 2),
    ("groupwise.training.evaluations:move_files", 1),
    ("groupwise.training.evaluations:replace_folder", 2),
    ("groupwise.training.evaluations:Evaluation", 2),
    ("groupwise.training.evaluations:remove", 1),
    ("groupwise.tracking.run:RunFolder.log_metrics", 4),
    ("groupwise.training.tensor_files:save_file", 2),
]


def moments(fast: int) -> Sequence[Any]:
    return [
        pytest.param(m, id=f"{m[0].split(':')[-1]}-{m[1]}", marks=[pytest.mark.slow] * (i >= fast))
        for i, m in enumerate(MOMENTS)
    ]


@pytest.mark.parametrize("moment", moments(fast=1))
def test_killed_and_resumed_no_evaluation_is_lost_or_logged_twice(
    moment: tuple[str, int], uninterrupted: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config, folder = config_for(TIMINGS["ahead"]), tmp_path / "run"
    assert attempt(config, folder, moment) == -signal.SIGKILL, "the moment was never reached"
    assert attempt(config, folder, None) == 0
    assert fingerprint(folder) == fingerprint(uninterrupted)


@timings
def test_a_callback_ends_a_run(
    timing: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(event: Event) -> None:
        if event.step == 2:
            event.stop("enough")

    use_workers(monkeypatch, FakeWorkers)
    result = train(config_for(timing), tmp_path / "run", callbacks=[stop], quiet=True)
    assert result.summary["status"] == "stopped: enough" and result.summary["steps"] == 2
    assert "eval/accuracy" in read_metrics(tmp_path / "run")[-1]
