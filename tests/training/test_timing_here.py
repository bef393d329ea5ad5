"""Sampling beside training in one process: the engine has a thread and weights of its own."""

import pathlib

import pytest

from groupwise.tracking.run import read_metrics
from groupwise.training.api import train
from ranks import largest_gap
from runs import small_config, timeless_metrics

RUN = [
    "steps=3",
    "eval.problems=1",
    "eval.k=1",
    "rollout.overlong_buffer=12",
    "eval.every=3",
    "optimizer.lr=1e-4",
]


def run(folder: pathlib.Path, *overrides: str) -> pathlib.Path:
    train(small_config(*RUN, *overrides), folder, quiet=True)
    return folder


@pytest.mark.slow
def test_ahead_every_engine_gives_the_weights_of_every_other(tmp_path: pathlib.Path) -> None:
    native = run(tmp_path / "native", "timing.kind=ahead", "engine.kind=native")
    slower = run(tmp_path / "transformers", "timing.kind=ahead", "engine.kind=transformers")
    assert [line["staleness"] for line in read_metrics(native)] == [0, 1, 1]
    assert largest_gap(native, slower) < 1e-5
    for ours, theirs in zip(timeless_metrics(native), timeless_metrics(slower), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("kind", ["native", pytest.param("transformers", marks=pytest.mark.slow)])
def test_in_flight_every_engine_keeps_the_bound(kind: str, tmp_path: pathlib.Path) -> None:
    timing = "timing={kind: in_flight, max_staleness: 2}"
    lines = read_metrics(run(tmp_path / "run", timing, f"engine.kind={kind}"))
    assert len(lines) == 3
    assert all(0 <= line["staleness"] <= line["staleness_max"] <= 2 for line in lines)
    assert lines[-1]["staleness_max"] > 0
