"""Symptoms in the clock: a phase of the step that takes more than its share."""

from groupwise.config import Config
from groupwise.diagnose.finding import Finding
from groupwise.diagnose.history import History, beyond, percent

ROWS = 40
"""Steps that shares are taken over: long enough to hold an evaluation."""
LEAST = 1.0
"""Seconds a step below which a phase is not worth anyone's time."""

# A share of the step's time that is more than usual, and what to do about it.
PHASES = {
    "generate": (
        0.9,
        "engine.kind=native where the model allows it, a larger engine.max_batch, "
        "compile=sampling on CUDA, a lower rollout.max_completion_tokens",
    ),
    "reward": (
        0.4,
        "a larger reward_processes where cores are free, a cheaper reward function, a lower "
        "reward_timeout where answers hang it",
    ),
    "logprobs": (
        0.4,
        "algorithm.kl_weight=0 needs no reference pass; batch.epochs=1 with batch.minibatches=1 "
        "needs no pass for old log-probs; a larger batch.tokens_per_microbatch",
    ),
    "update": (
        0.8,
        "a larger batch.tokens_per_microbatch, gradient_checkpointing=false, fewer batch.epochs",
    ),
    "eval": (0.4, "a larger eval.every, a smaller eval.problems, eval.k=1"),
}


def slow_phase(history: History, config: Config | None, standing: bool) -> Finding | None:
    """One phase dominates the time of a step."""
    if history.rows < ROWS // 2:
        return None
    rows = min(history.rows, ROWS)
    whole = history.total("seconds", rows)
    if whole <= 0:  # a clock that was set back
        return None
    for phase, (share, fix) in PHASES.items():
        spent = history.total(f"seconds/{phase}", rows)
        if spent / rows < LEAST or not beyond(spent / whole, share, share - 0.05, standing):
            continue
        return Finding(
            f"Slow phase: {phase}",
            f"{phase} takes {percent(spent / whole)} of the time, {spent / rows:.1f} of "
            f"{whole / rows:.1f} seconds a step over the last {rows}",
            fix,
            "info",
        )
    return None
