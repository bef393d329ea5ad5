"""Runs made of numbers alone: a healthy one, and how to make it ill in one way."""

import random
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
Column = Callable[[int], float]
"""The value of a column at a step."""


def healthy_run(steps: int = 60, seed: int = 0, **columns: Column) -> list[Row]:
    """A run that learns: reward and held-out accuracy rise together, nothing goes wrong.

    `columns` replace or add some; write rewards__format for rewards/format.
    """
    rng = random.Random(seed)
    rows = []
    for step in range(1, steps + 1):
        progress = step / steps
        accuracy = 0.3 + 0.5 * progress + rng.gauss(0, 0.03)
        row: Row = {
            "step": step,
            "loss": rng.gauss(0, 0.01),
            "grad_norm": 0.4 + 0.1 * rng.random(),
            "lr": 1e-6,
            "reward": accuracy + 0.18,
            "reward_std": 0.45,
            "accuracy": accuracy,
            "no_spread": 0.2 + 0.2 * progress + rng.gauss(0, 0.04),
            "truncated": 0.05 * rng.random(),
            "tokens": 100 + 60 * progress + rng.gauss(0, 4),
            "tokens_max": 250.0,
            "entropy": 0.8 - 0.4 * progress + rng.gauss(0, 0.02),
            "kl": 0.04 * progress + 0.01 * rng.random(),
            "clip_low": 0.002,
            "clip_high": 0.003,
            "sampler_gap": 0.008 * rng.random(),
            "rewards/correct": accuracy,
            "rewards/format": 0.9,
            "spread/correct": 0.4,
            "spread/format": 0.03,
            "varied/correct": 0.7,
            "varied/format": 0.5,
            "seconds": 10.0,
            "seconds/generate": 6.0,
            "seconds/reward": 0.2,
            "seconds/update": 3.5,
        }
        if step % 10 == 0:
            row |= {"eval/accuracy": accuracy - 0.02, "eval/problems": 200.0}
            row |= {"eval/reward": accuracy + 0.16}
        row |= {name.replace("__", "/"): column(step) for name, column in columns.items()}
        rows.append(row)
    return rows


def tool_run(steps: int = 60, seed: int = 0, **columns: Column) -> list[Row]:
    """A healthy run whose answers are episodes: most call a tool once or twice."""
    rng = random.Random(seed)
    episodes: dict[str, Column] = {
        "episode__turns": lambda step: 2.5 + 0.1 * rng.random(),
        "episode__tools": always(2.0),
        "episode__called": ramp(0.5, 0.95),
        "episode__calls": ramp(0.8, 1.8),
        "episode__malformed": ramp(0.1, 0.01),
        "episode__repeated": ramp(0.1, 0.02),
        "episode__unanswered": ramp(0.2, 0.02),
        "episode__turn_limit": ramp(0.25, 0.05),
        "episode__failed": lambda step: 0.02 * (rng.random() > 0.8),
        "episode__waiting": lambda step: 0.2 + 0.1 * rng.random(),
    }
    return healthy_run(steps, seed, **{**episodes, **columns})


def always(value: float) -> Column:
    return lambda step: value


def ramp(first: float, last: float, steps: int = 60) -> Column:
    return lambda step: first + (last - first) * min(step / steps, 1.0)
