"""In turn, ahead and in flight on the same recipe, with answers whose lengths have a long tail.

    python benchmarks/asynchronous.py [--steps 12] [--workers 2] [--tokens 256]

The embedded model, sampled at a high temperature by worker processes of this machine: most answers
are short and some run to the limit, so that in turn the trainer waits for the last of them, and
the workers wait for the trainer. Each timing trains from the start, one after the other in one run;
the ratios are of seconds a step (lower is faster) and hold for this machine and its load.
"""

import argparse
import pathlib
import statistics
import tempfile

from groupwise.recipe import parse
from groupwise.tracking.run import read_metrics
from groupwise.training.api import train

TIMINGS = {
    "in turn": {"kind": "in_turn"},
    "ahead by 1": {"kind": "ahead", "max_staleness": 1},
    "in flight, at most 4 old": {"kind": "in_flight", "max_staleness": 4},
}
WARM_UP = 2
"""Steps that are left out: workers compile and allocate in them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256)
    chosen = parser.parse_args()
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as root:
        for number, (name, timing) in enumerate(TIMINGS.items()):
            folder = pathlib.Path(root) / str(number)
            train(parse(recipe(chosen, timing)), folder, quiet=True)
            lines = read_metrics(folder)[WARM_UP:]
            seconds[name] = statistics.mean(line["seconds"] for line in lines)
            tokens = statistics.mean(line["tokens"] for line in lines)
            longest = max(line["tokens_max"] for line in lines)
            stale = max(line.get("staleness_max", 0.0) for line in lines)
            print(
                f"{name}: {seconds[name]:.2f} s a step, answers of {tokens:.0f} tokens on average "
                f"and {longest:.0f} at most, up to {stale:.0f} updates old",
                flush=True,
            )
    for name in list(TIMINGS)[1:]:
        print(f"step ratio, in turn over {name}: {seconds['in turn'] / seconds[name]:.2f}")


def recipe(chosen: argparse.Namespace, timing: dict[str, object]) -> dict[str, object]:
    return {
        "steps": chosen.steps + WARM_UP,
        "device": "cpu",
        "place": {"kind": "processes", "count": chosen.workers},
        "timing": timing,
        "task": {"kind": "arithmetic", "train_size": 4096, "test_size": 8},
        "batch": {"prompts": 8, "group_size": 8, "epochs": 2},
        "rollout": {
            "max_prompt_tokens": 64,
            "max_completion_tokens": chosen.tokens,
            "temperature": 1.4,
        },
        "optimizer": {"lr": 1e-5},
        "eval": {"problems": 2, "k": 1},
        "checkpoint": {"every": 0},
        "tracking": {"tensorboard": False, "rollouts": 0},
    }


if __name__ == "__main__":
    main()
