"""`reference.kind=process`: the run starts the server that has its reference, and ends it."""

import pathlib

import pytest

from groupwise.recipe import load_recipe
from groupwise.training.api import train
from runs import timeless_metrics


@pytest.mark.slow
def test_one_command_starts_the_reference_and_the_generation(tmp_path: pathlib.Path) -> None:
    words = ["tracking.tensorboard=false", "eval.problems=1", "steps=1"]
    train(load_recipe("simple_grpo", words, tiny=True), tmp_path / "one", quiet=True)
    started = ["reference.kind=process", "place={kind: processes, count: 1}"]
    config = load_recipe("simple_grpo", [*words, *started], tiny=True)
    train(config, tmp_path / "several", quiet=True)
    one, several = timeless_metrics(tmp_path / "one"), timeless_metrics(tmp_path / "several")
    assert "kl" in one[0] and several == [pytest.approx(line, rel=1e-4, abs=1e-6) for line in one]
