"""How busy the machine is: cores of this process, and what the GPU's driver says."""

import time

import pytest

from groupwise.training import usage
from groupwise.training.usage import Usage


def test_a_busy_thread_is_a_core_and_a_sleeping_one_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = iter([(1.0, 10.0), (4.0, 12.0), (4.0, 16.0)])
    now = [0.0, 0.0]

    def process_time() -> float:
        now[:] = next(clocks)
        return now[0]

    monkeypatch.setattr(time, "process_time", process_time)
    monkeypatch.setattr(time, "perf_counter", lambda: now[1])
    with Usage() as used:
        assert used.metrics()["cpu_cores"] == 1.5
        assert used.metrics()["cpu_cores"] == 0


def test_the_gpu_is_looked_at_again_and_again_and_each_step_has_its_own_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage, "SECONDS", 0.001)
    values = iter([0.2, 0.4])

    def utilization() -> float:
        try:
            return next(values)
        except StopIteration:
            raise RuntimeError("the driver is gone") from None

    with Usage(utilization) as used:
        used._thread.join(10)
        assert used.metrics()["gpu_busy"] == pytest.approx(0.3)
        assert "gpu_busy" not in used.metrics()
