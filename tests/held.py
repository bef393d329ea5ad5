"""Runs that wait at steps of a test's choosing, so that what a test does to them is never too late.

    held = Held(folder, 2)
    process = Popen([..., "train", recipe, "--out", folder, *held.words])
    held.wait(2, process)   # step 2 is logged, and the trainer waits
    ...
    held.go_on(2)

It waits in a tracker, which any recipe can name. What samples or evaluates beside it goes on.
"""

import pathlib
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

import groupwise
from groupwise.config import Config

SECONDS = 240.0
"""For a run to come to a step, and for a test to let it go on: a run outlives no test for long."""


def wait_until(true: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


class Held:
    """The run that is to be in `folder` waits when these steps are logged."""

    def __init__(self, folder: pathlib.Path, *steps: int) -> None:
        self.folder = gates(folder)
        self.folder.mkdir(parents=True)
        self.words = (f"tracking.own=[{__file__}:Gate]",)
        for step in steps:
            (self.folder / f"{step}").touch()

    def wait(self, step: int, process: subprocess.Popen[Any]) -> None:
        """Until the run, which is this process's, waits there."""
        reached = self.folder / f"{step}.reached"
        wait_until(lambda: reached.exists() or process.poll() is not None, SECONDS)
        assert reached.exists(), f"the run did not come to step {step}: {process.poll()}"

    def go_on(self, step: int) -> None:
        (self.folder / f"{step}").unlink()


@groupwise.tracker
class Gate:
    def __init__(self, folder: pathlib.Path, config: Config) -> None:
        self.folder = gates(folder)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        closed = self.folder / f"{step}"
        if closed.exists():
            (self.folder / f"{step}.reached").touch()
            wait_until(lambda: not closed.exists(), SECONDS)

    def close(self) -> None:
        """Nothing is open."""


def gates(folder: pathlib.Path) -> pathlib.Path:
    """Beside the run's folder, which is the run's own."""
    return folder.with_name(f"{folder.name}.held")
