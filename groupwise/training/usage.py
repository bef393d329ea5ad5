"""How busy CPU and GPU are, from step to step.

with Usage() as usage:
    ...
    usage.metrics()         {"cpu_cores": 1.8, "gpu_busy": 0.93}, since it was asked last
"""

import threading
import time
from collections.abc import Callable

import torch

SECONDS = 0.5
"""Between two looks at the GPU."""


def gpu_utilization() -> float:
    """The share of the last moment in which a kernel ran on this process's GPU."""
    return torch.cuda.utilization() / 100


class Usage:
    """`cpu_cores` counts cores that this process's threads kept busy. `gpu_busy` is there on a GPU
    whose driver can be asked (the package nvidia-ml-py)."""

    def __init__(self, utilization: Callable[[], float] | None = None) -> None:
        self._utilization = utilization
        if utilization is None and torch.cuda.is_available():
            self._utilization = gpu_utilization
        self._seen: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="usage", daemon=True)
        self._clocks = time.process_time(), time.perf_counter()

    def __enter__(self) -> "Usage":
        if self._utilization is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _poll(self) -> None:
        assert self._utilization is not None
        while not self._done.wait(SECONDS):
            try:
                self._seen.append(self._utilization())
            except (ImportError, RuntimeError, OSError):  # no nvidia-ml-py, or a driver that fails
                return

    def metrics(self) -> dict[str, float]:
        before, self._clocks = self._clocks, (time.process_time(), time.perf_counter())
        busy, wall = (now - then for now, then in zip(self._clocks, before, strict=True))
        seen, self._seen = self._seen, []
        gpu = {"gpu_busy": sum(seen) / len(seen)} if seen else {}
        return {"cpu_cores": busy / wall if wall > 0 else 0.0, **gpu}
