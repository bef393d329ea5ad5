"""Sampling ahead of training: which weights sample what, exactly, whatever the timing."""

import asyncio
import pathlib
import random
import signal
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fake_workers import FakeWorkers
from groupwise.config import Ahead
from groupwise.describe import describe_place
from groupwise.errors import ConfigError, Interrupted, ModelError
from groupwise.policy.weights import trained_weights
from groupwise.recipe import parse
from groupwise.rollout.engine_thread import EngineThread
from groupwise.rollout.groups import Rollout
from groupwise.tracking.run import read_metrics
from groupwise.training.api import train
from groupwise.training.rollouts import RolloutsAhead, copied
from runs import fingerprint, small_config, use_workers
from small_models import random_policy
from test_resume import attempt

# A learning signal from any answer (its length), and evaluations and checkpoints at steps that are
# no multiples of each other or of publish_every.
CONFIG = small_config(
    "steps=8",
    "place.count=1",
    "timing.publish_every=2",
    "timing.max_staleness=3",
    "rollout.overlong_buffer=16",
    "rollout.max_draws=2",
    "eval.every=5",
    "checkpoint.every=3",
)


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    use_workers(monkeypatch, FakeWorkers)


schedules = st.integers(1, 5).flatmap(
    lambda every: st.builds(
        Ahead,
        publish_every=st.just(every),
        max_staleness=st.integers(max(every - 1, 1), every + 4),
    )
)


@given(schedules, st.integers(0, 60))
def test_weights_are_never_older_than_the_bound_and_never_go_back(
    settings: Ahead, step: int
) -> None:
    version = settings.version_for(step)
    assert 0 <= step - version <= settings.max_staleness
    assert version % settings.publish_every == 0
    assert version <= settings.version_for(step + 1) <= version + settings.publish_every
    assert max(t - settings.version_for(t) for t in range(60)) == settings.max_staleness


def test_the_schedule_in_numbers() -> None:
    def versions(every: int, stale: int) -> list[int]:
        settings = Ahead(publish_every=every, max_staleness=stale)
        return [settings.version_for(step) for step in range(8)]

    assert versions(1, 1) == [0, 0, 1, 2, 3, 4, 5, 6]
    assert versions(2, 1) == [0, 0, 2, 2, 4, 4, 6, 6]
    assert versions(2, 3) == [0, 0, 0, 0, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["timing.publish_every=3"], "raise max_staleness"),
        (["place.urls=[somewhere]"], "must look like"),
        (["place.urls=['http://a:1', 'http://a:1']"], "named once"),
        (["place.count=0"], "place.count"),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse({}, overrides)


def test_stale_answers_are_corrected_for_unless_the_recipe_says_how() -> None:
    def mismatch(*overrides: str) -> str:
        return parse({}, overrides).algorithm.mismatch

    assert mismatch("timing=ahead") == "token"
    assert mismatch("timing=ahead", "algorithm=gspo") == "token"
    assert mismatch("timing=ahead", "algorithm.mismatch=sequence") == "sequence"
    assert mismatch("timing=ahead", "algorithm.mismatch=none") == "none"
    assert mismatch("place.count=1") == "none"  # in turn nothing is old
    assert mismatch("timing=in_flight") == "token"


def test_what_samples_and_what_corrects_is_said() -> None:
    def said(*overrides: str) -> str:
        return describe_place(parse({}, ["place.count=2", "timing=ahead", *overrides]))

    assert said() == (
        "auto in 2 processes of this machine; answers are by weights up to 1 updates old, "
        "corrected for by algorithm.mismatch=token"
    )
    assert said("algorithm.mismatch=none").endswith("NOT corrected for")
    present = "answers are by the present weights"
    assert said("timing=in_turn") == f"auto in 2 processes of this machine; {present}"
    assert (
        said("place={urls: ['http://a:1']}", "timing=in_turn") == f"auto at http://a:1; {present}"
    )


class Stepping:
    """A trainer without training: its weights are the number of its step."""

    def __init__(self, settings: Ahead, steps: int, fail_at: int = -1) -> None:
        self.state: Any = SimpleNamespace(step=0, cursor=0, pending=[], weights=self.weights)
        self.state.publish = lambda engine: engine.load_weights(self.state.step, self.weights())
        self.sampled: list[tuple[int, int, Any]] = []
        self.engine_has: Any = None
        self.pause = 0.0
        self.fail_at = fail_at
        engine: Any = self
        self.thread = EngineThread(engine)
        self.ahead = RolloutsAhead(settings, steps, self.state, self.thread, self.collect)

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        ((_, weight),) = weights
        assert version == weight
        self.engine_has = version

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        return [("step", torch.tensor(float(self.state.step)))]

    def close(self) -> None:
        """Nothing runs."""

    async def collect(self, step: int, cursor: int) -> Rollout:
        await asyncio.sleep(self.pause * random.random())
        if step == self.fail_at:
            raise ModelError("no worker is left")
        self.sampled.append((step, cursor, self.engine_has))
        return Rollout([], 2 + step % 3)

    def learn(self) -> None:
        collected = self.ahead.take()
        time.sleep(self.pause * random.random())
        self.state.step += 1
        self.state.cursor += collected.drawn
        self.ahead.policy_updated()


@given(schedules, st.integers(1, 12), st.integers(0, 99))
def test_steps_are_sampled_in_order_by_the_weights_of_the_schedule(
    settings: Ahead, steps: int, seed: int
) -> None:
    trainer, rng = Stepping(settings, steps), random.Random(seed)
    trainer.pause = 0.001
    evaluations: list[tuple[int, Future[Any]]] = []
    for _ in range(steps):
        trainer.learn()
        at = trainer.state.step
        if rng.random() < 0.5:
            for _, earlier in evaluations:
                earlier.result()
            evaluations.append((at, trainer.ahead.in_background(lambda: trainer.engine_has)))
        if rng.random() < 0.3:
            for version, earlier in evaluations:
                assert version == at or earlier.result() == version
            with trainer.ahead.ready_to_save():
                # All that older weights owe is there, and no step begins.
                owed = [t for t in range(at, steps) if settings.version_for(t) < at]
                assert len(trainer.state.pending) >= len(owed)
                before = len(trainer.sampled)
                time.sleep(0.001)
                assert len(trainer.sampled) == before
    trainer.ahead.close()
    assert all(future.done() and future.result() == at for at, future in evaluations)
    trainer.thread.close()
    cursors = [sum(2 + t % 3 for t in range(step)) for step in range(steps)]
    versions = [settings.version_for(step) for step in range(steps)]
    assert trainer.sampled == list(zip(range(steps), cursors, versions, strict=True))
    assert trainer.engine_has == steps


def test_a_step_is_sampled_while_the_one_before_it_is_learned_from() -> None:
    trainer = Stepping(Ahead(), 4)
    trainer.ahead.take()  # step 0 is now being learned from
    deadline = time.monotonic() + 10
    while len(trainer.sampled) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert [step for step, *_ in trainer.sampled] == [0, 1]  # and no further: 2 needs weights 1
    trainer.thread.close()


def test_what_fails_ahead_is_raised_when_its_step_is_wanted() -> None:
    trainer = Stepping(Ahead(max_staleness=2), 6, fail_at=2)
    trainer.learn()
    trainer.learn()
    with pytest.raises(ModelError, match="no worker is left"):
        trainer.learn()
    with pytest.raises(ModelError, match="no worker is left"), trainer.ahead.ready_to_save():
        pass
    trainer.thread.close()
    assert threading.active_count() < 20


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    with pytest.MonkeyPatch.context() as context:
        use_workers(context, FakeWorkers)
        folder = tmp_path_factory.mktemp("ahead") / "run"
        train(CONFIG, folder, quiet=True)
    return folder


def test_staleness_is_logged_and_follows_the_schedule(uninterrupted: pathlib.Path) -> None:
    lines = read_metrics(uninterrupted)
    assert isinstance(CONFIG.timing, Ahead)
    expected = [step - CONFIG.timing.version_for(step) for step in range(8)]
    assert [line["staleness"] for line in lines] == expected == [0, 1, 2, 3, 2, 3, 2, 3]
    assert [line["staleness_max"] for line in lines] == expected
    assert all(line["mismatch"] > 0 for line in lines)


@pytest.mark.slow
def test_a_run_can_be_repeated_bit_for_bit(
    uninterrupted: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    train(CONFIG, tmp_path / "run", quiet=True)
    assert fingerprint(tmp_path / "run") == fingerprint(uninterrupted)


# In the thread that samples, in the update, and while a checkpoint is written.
MOMENTS = [
    ("groupwise.training.update:policy_loss", 5),
    ("groupwise.training.collect:sample_group", 20),
    ("groupwise.training.tensor_files:save_file", 2),
    ("groupwise.training.collect:score_groups", 5),
    ("groupwise.training.step:annotate", 5),
    ("groupwise.tracking.run:RunFolder.log_metrics", 7),
    ("groupwise.tracking.whole:_sync_folder", 9),
    ("groupwise.training.api:model_card", 1),
]


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(m, id=f"{m[0].split(':')[-1]}-{m[1]}", marks=[pytest.mark.slow] * (i >= 1))
        for i, m in enumerate(MOMENTS)
    ],
)
def test_killed_and_resumed_equals_never_killed(
    moment: tuple[str, int], uninterrupted: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """What was sampled ahead by older weights is in the checkpoint: those weights are gone."""
    folder = tmp_path / "run"
    assert attempt(CONFIG, folder, moment) == -signal.SIGKILL, "the moment was never reached"
    assert attempt(CONFIG, folder, None) == 0
    assert fingerprint(folder) == fingerprint(uninterrupted)


@pytest.mark.slow
def test_sigterm_and_on_again_equals_never_stopped(
    uninterrupted: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from groupwise.training import step

    calls, original = 0, step.annotate

    def stop_here(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            signal.raise_signal(signal.SIGTERM)
        return original(*args, **kwargs)

    monkeypatch.setattr(step, "annotate", stop_here)
    with pytest.raises(Interrupted, match="SIGTERM"):
        train(CONFIG, tmp_path / "run", quiet=True)
    monkeypatch.setattr(step, "annotate", original)
    train(CONFIG, tmp_path / "run", quiet=True)
    assert fingerprint(tmp_path / "run") == fingerprint(uninterrupted)


@pytest.mark.slow
def test_another_schedule_is_another_run_but_other_workers_are_not(tmp_path: pathlib.Path) -> None:
    def config(*more: str) -> Any:
        return small_config("steps=2", "place.count=1", "timing.max_staleness=1", *more)

    train(config(), tmp_path / "run", quiet=True)
    for more in ("timing.max_staleness=2", "timing=in_turn"):
        with pytest.raises(Exception, match=r"timing\.max_staleness was 1 and is now"):
            train(config("steps=3", more), tmp_path / "run", quiet=True)
    train(config("steps=3", "place.count=5"), tmp_path / "run", quiet=True)
    assert [line["staleness"] for line in read_metrics(tmp_path / "run")] == [0, 1, 0]


def test_weights_are_copied_so_that_training_does_not_reach_them() -> None:
    policy = random_policy(seed=1)
    weights = dict(copied(iter(trained_weights(policy).items())))
    before = {name: weight.clone() for name, weight in weights.items()}
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(1)
    assert all(torch.equal(weights[name], before[name]) for name in before)
