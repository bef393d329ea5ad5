"""The speedrun: from a fixed model and data to a fixed held-out accuracy, as fast as can be.

    python benchmarks/speedrun.py cpu                         # the demo's sums to 95 %, minutes
    python benchmarks/speedrun.py gpu --model FOLDER --data FOLDER      # GSM8K to 70 %
    python benchmarks/speedrun.py cpu steps=40 optimizer.lr=1e-4        # try something better

Three seeds, each a process of its own; the clock runs from the command to its verdict: imports,
loading, compiling, the evaluations before and after, saving. A try counts when the mean accuracy
of the seeds reaches the target. Any setting may be changed but those of the track, which fix what
is learned and how it is judged. `--record` adds a line to benchmarks/results/speedrun.jsonl, from
which docs/learning.md's table is made.
"""

import argparse
import datetime
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "results" / "speedrun.jsonl"
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Track:
    """What is to be reached, from where, and how it is judged: nothing of this may be changed."""

    name: str
    target: float
    recipe: tuple[str, ...]
    fixed: tuple[str, ...]


TRACKS = {
    "cpu": Track(
        "the demo's sums to 95 %",
        0.95,
        ("demo",),
        ("model=tiny", "task.kind=arithmetic", "task.test_size=500", "eval.problems=500"),
    ),
    "gpu": Track(
        "GSM8K to 70 %, Qwen2.5-Coder-1.5B",
        0.70,
        ("best_small", "--preset", "quarter_hour"),
        ("task.kind=gsm8k", "task.test_size=1319", "eval.problems=1319"),
    ),
}
RECORD_SETTINGS: dict[str, tuple[str, ...]] = {
    "cpu": ("eval.every=0", "eval.k=1", "checkpoint.every=0"),
    "gpu": ("compile=all", "optimizer.average=20", "steps=82"),
}
"""What the present record changes in the track's recipe."""


@dataclass(frozen=True)
class Run:
    seed: int
    seconds: float
    """From the command to its verdict."""
    training: float
    """The steps alone."""
    steps: int
    accuracy: float


def run(track: Track, seed: int, settings: Sequence[str], keep: pathlib.Path | None) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        out = (keep or pathlib.Path(folder)) / f"seed-{seed}"
        command = [sys.executable, "-m", "groupwise", "train", *track.recipe, "--out", str(out)]
        command += ["--quiet", *settings, *track.fixed, f"seed={seed}"]
        began = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT)
        seconds = time.perf_counter() - began
        if done.returncode:
            sys.exit(f"seed {seed} failed: {' '.join(command)}")
        summary = json.loads((out / "summary.json").read_text())
        steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    training = sum(step["seconds"] for step in steps)
    return Run(seed, seconds, training, summary["steps"], summary["after"]["accuracy"])


def verdict(track: Track, runs: Sequence[Run]) -> tuple[float, bool]:
    """The mean accuracy, and whether it is enough."""
    accuracy = statistics.fmean(run.accuracy for run in runs)
    return accuracy, accuracy >= track.target - 1e-9  # a mean of three is rounded


def check_settings(track: Track, settings: Sequence[str]) -> None:
    """What a track fixes may not be set in another way."""
    fixed = {line.partition("=")[0] for line in track.fixed} | {"seed", "task"}
    for setting in settings:
        name = setting.partition("=")[0]
        if "=" not in setting or name in fixed:
            sys.exit(f"{setting}: {name} is fixed by the track, or this is no setting")


def record(name: str, runs: Sequence[Run], settings: Sequence[str]) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return {
        "track": name,
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": machine(),
        "settings": list(settings),
        "steps": runs[0].steps,
        "seconds": round(statistics.fmean(run.seconds for run in runs), 1),
        "training": round(statistics.fmean(run.training for run in runs), 1),
        "accuracy": [run.accuracy for run in runs],
    }


def machine() -> str:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    return f"{torch.get_num_threads()} cores, {platform.machine()}"


def table(records: Sequence[dict[str, Any]]) -> str:
    """As docs/learning.md shows it."""
    lines = [
        "| track | date | commit | machine | changed | steps | seconds | training | accuracy |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for line in records:
        accuracy = ", ".join(f"{100 * value:.1f}" for value in line["accuracy"])
        settings = " ".join(f"`{setting}`" for setting in line["settings"])
        lines.append(
            f"| {line['track']} | {line['date']} | {line['commit']} | {line['machine']} | "
            f"{settings} | {line['steps']} | {line['seconds']} | {line['training']} | "
            f"{accuracy} % |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("track", choices=tuple(TRACKS))
    parser.add_argument("settings", nargs="*", help="further settings: steps=40")
    parser.add_argument("--model", help="gpu: a folder or id of Qwen2.5-Coder-1.5B-Instruct")
    parser.add_argument("--data", help="gpu: a folder with GSM8K")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="fewer: a try, no record")
    parser.add_argument("--keep", type=pathlib.Path, help="keep the runs in this folder")
    parser.add_argument("--record", action="store_true", help="add a line to the records")
    options = parser.parse_intermixed_args(argv)
    track = TRACKS[options.track]
    check_settings(track, options.settings)
    settings = [*RECORD_SETTINGS[options.track], *options.settings]
    places = {"model": options.model, "task.path": options.data}
    placed = [f"{name}={value}" for name, value in places.items() if value]
    runs: list[Run] = []
    for seed in SEEDS[: options.seeds]:
        runs.append(run(track, seed, [*settings, *placed], options.keep))
        last = runs[-1]
        print(
            f"seed {seed}: {last.accuracy:.1%} after {last.steps} steps, {last.seconds:.1f} s "
            f"({last.training:.1f} s of training)",
            flush=True,
        )
    accuracy, reached = verdict(track, runs)
    line = record(options.track, runs, settings)
    print(f"{track.name}: {accuracy:.1%} in {line['seconds']} s", "" if reached else "(not enough)")
    if options.record:
        if not reached or len(runs) < len(SEEDS):
            sys.exit("no record: three seeds have to reach the target in the mean")
        with RECORDS.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
