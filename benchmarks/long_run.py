"""Thousands of steps of the embedded model: does memory, the folder or the time of a step grow?

    python benchmarks/long_run.py --steps 5000 --out runs/long --json long.json

Steps are very small (2 prompts x 4 answers of 12 tokens), since what may grow with their number is
looked for and not what they compute; an answer's length gives them something to learn. The second
tenth of the run, when all is warm, is compared with the last.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import time
from typing import Any

import groupwise
from groupwise.errors import Interrupted
from groupwise.training.callbacks import Event

SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "compile": "none",
    "task": {"kind": "arithmetic", "train_size": 512, "test_size": 8},
    "batch": {"prompts": 2, "group_size": 4},
    "rollout": {"max_prompt_tokens": 64, "max_completion_tokens": 12, "overlong_buffer": 12},
    "eval": {"problems": 2, "k": 1},
    "checkpoint": {"every": 100, "keep": 2},
    "tracking": {"rollouts": 5, "keep_rollouts": 20},
}


class Watch:
    """What the process and its folder hold after every fiftieth of the run."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []
        self.seconds: list[float] = []
        self._computed = time.process_time()

    def on_step(self, event: Event) -> None:
        now = time.process_time()  # of computing: other programs do not count
        self.seconds.append(now - self._computed)
        self._computed = now
        if event.step % max(1, event.steps // 50) == 0:
            files = [path for path in event.folder.rglob("*") if path.is_file()]
            self.lines.append(
                {
                    "step": event.step,
                    "resident_mb": resident_mb(),
                    "threads": len(os.listdir("/proc/self/task")),
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "files": len(files),
                    "folder_mb": sum(path.stat().st_size for path in files) / 1e6,
                }
            )


def resident_mb() -> float:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1000


def compared(watch: Watch, steps: int) -> dict[str, Any]:
    """The second tenth of the run beside its last."""
    tenth = steps // 10
    seconds = watch.seconds[tenth : 2 * tenth], watch.seconds[-tenth:]
    early = [line for line in watch.lines if tenth < line["step"] <= 2 * tenth]
    late = [line for line in watch.lines if line["step"] > steps - tenth]
    names = [name for name in watch.lines[0] if name != "step"]
    rows = {
        name: [statistics.mean(line[name] for line in part) for part in (early, late)]
        for name in names
    }
    rows["milliseconds"] = [1000 * statistics.median(part) for part in seconds]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--out", default="runs/long")
    parser.add_argument("--json", type=pathlib.Path)
    asked = parser.parse_args()
    watch = Watch()
    settings = {**SETTINGS, "steps": asked.steps}
    try:
        groupwise.train("demo", asked.out, callbacks=[watch], quiet=True, **settings)
    except Interrupted as stopped:
        print(stopped)
    steps = len(watch.seconds)
    rows = compared(watch, steps)
    machine = f"{os.cpu_count()}-core {platform.machine()} CPU"
    for name, (early, late) in rows.items():
        print(f"{name:>14}: {early:10.2f} early, {late:10.2f} at the end")
    if asked.json is not None:
        result = {"machine": machine, "steps": steps, "rows": rows, "lines": watch.lines}
        asked.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
