"""Small runs of the real thing: the embedded model on short problems, a second or two each."""

import hashlib
import io
import json
import logging
import pathlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from groupwise import load
from groupwise.cli.main import main
from groupwise.config import Config
from groupwise.recipe import parse
from groupwise.tracking.run import read_metrics, read_rollouts

SMALL: dict[str, Any] = {
    "steps": 4,
    "device": "cpu",
    "task": {"kind": "arithmetic", "train_size": 64, "test_size": 8},
    "batch": {"prompts": 3, "group_size": 4},
    "rollout": {"max_prompt_tokens": 64, "max_completion_tokens": 16},
    "eval": {"problems": 4, "k": 2},
    "checkpoint": {"every": 2},
    "tracking": {"tensorboard": False},
    "optimizer": {"lr": 1e-3},
}

# Everything that a run can carry from step to step: two epochs, a reference that moves, an entropy
# weight that adapts, dynamic sampling, a schedule.
STATEFUL = (
    "batch.epochs=2",
    "batch.minibatches=2",
    "reference.kind=mixed",
    "reference.every=2",
    "algorithm.kl_weight=0.01",
    "algorithm.entropy_target=3.0",
    "rollout.max_draws=2",
    "optimizer.schedule=cosine",
    "optimizer.warmup=2",
    "eval.every=2",
)


def small_config(*overrides: str) -> Config:
    return parse(SMALL, overrides)


def exit_code(words: Sequence[str], patch: pytest.MonkeyPatch, typed: str = "") -> Any:
    """How `groupwise WORDS` ends, without the seconds that a process takes to import torch."""
    patch.setattr(sys, "argv", ["groupwise", *words])
    patch.setattr(sys, "stdin", io.StringIO(typed))
    patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    level = logging.getLogger("groupwise").level
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        logging.getLogger("groupwise").setLevel(level)
    return ended.value.code


def digest(folder: pathlib.Path) -> str:
    """A hash of a model folder's weights, or of its adapter's."""
    (weights,) = folder.glob("*.safetensors")
    return hashlib.sha256(weights.read_bytes()).hexdigest()


def timeless_metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The metric log without clocks and memory."""

    def timed(name: str) -> bool:
        clocks = ("tokens_per_second", "memory_gb", "cpu_cores", "episode/waiting")
        return name.startswith("seconds") or name in clocks

    lines = read_metrics(folder)
    return [{k: v for k, v in line.items() if not timed(k)} for line in lines]


def fingerprint(folder: pathlib.Path) -> dict[str, Any]:
    """All of a finished run that must not depend on how often it was killed."""
    summary = json.loads((folder / "summary.json").read_text())
    rollouts = sorted((folder / "rollouts").glob("*.gz"))
    return {
        "model": digest(folder / "model"),
        "best": digest(folder / "best") if (folder / "best").exists() else None,
        "metrics": timeless_metrics(folder),
        "rollouts": {path.name: read_rollouts(path) for path in rollouts},
        "held_out": {p.name: p.read_text() for p in sorted((folder / "eval").iterdir())},
        "before": summary["before"],
        "after": summary["after"],
    }


def use_workers(patch: pytest.MonkeyPatch, engine: Callable[[Any, Any], Any]) -> None:
    """In place of workers in other processes, an engine of a test's own."""
    kind = replace(load.ENGINES["native"], elsewhere=engine)
    patch.setitem(load.ENGINES, "native", kind)
