"""From the seconds of single steps to a measurement, with the process's peak memory."""

import pathlib
import resource
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sidebyside.settings import Measurement, Setting


def record(
    kind: str,
    setting: Setting,
    steps: Sequence[Mapping[str, float]],
    tokens: Sequence[int],
    longest: int,
    **notes: Any,
) -> Measurement:
    """Medians of the steps after the warm-up, and how long the first step took: it compiles.

    `steps` and `tokens` begin with the warm-up's.
    """
    counted = steps[setting.warmup :]
    medians = {name: statistics.median(step[name] for step in counted) for name in counted[0]}
    notes["first"] = steps[0].get("step", steps[0]["generation"])
    if setting.device == "cuda":
        notes["reserved_bytes"] = torch.cuda.max_memory_reserved()
    return Measurement(
        kind=kind,
        setting=setting,
        seconds=medians,
        every_step=tuple(counted),
        tokens=statistics.median(tokens[setting.warmup :]),
        longest=longest,
        peak_bytes=peak_bytes(setting.device),
        notes=notes,
    )


def peak_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def held_bytes(device: str) -> int:
    """Memory in use now: whether it grows from step to step shows a leak."""
    if device == "cuda":
        return torch.cuda.memory_allocated()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def forget_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
