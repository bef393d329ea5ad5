"""Run measurements in child processes, one kind at a time, and hand on results as they come."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sidebyside.settings import Failure, Setting

HERE = pathlib.Path(__file__).resolve().parent.parent
"""The folder that `sidebyside` is imported from; its parent has `groupwise`."""


def measured(kind: str, settings: Sequence[Setting], timeout: float) -> Iterator[dict[str, Any]]:
    """A line for each setting, as soon as the child has written it; what is missing is a failure.

    `timeout` is for the whole child. A child that dies or is killed loses only what it had not
    finished.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted, results = pathlib.Path(folder) / "settings.json", pathlib.Path(folder) / "results"
        wanted.write_text(json.dumps([asdict(setting) for setting in settings]))
        results.touch()
        log = pathlib.Path(folder) / "log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "sidebyside.measure", kind, str(wanted), str(results)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
        count = 0
        try:
            for line in _lines(child, results, timeout):
                count += 1
                yield json.loads(line)
            stopped = child.poll() is None
        finally:
            _end(child)
        why = f"stopped after {timeout:.0f} s" if stopped else f"exit status {child.returncode}"
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        for setting in settings[count:]:
            yield asdict(Failure(kind, setting, f"{why}: {''.join(last)[:200]}"))


def _lines(child: subprocess.Popen[bytes], results: pathlib.Path, timeout: float) -> Iterator[str]:
    """Whole lines of the child's results until it ends or its time is up."""
    deadline = time.monotonic() + timeout
    with results.open() as file:
        rest, ended = "", False
        while not ended and time.monotonic() < deadline:
            ended = child.poll() is not None  # asked before reading, so that nothing is missed
            rest += file.read()
            *whole, rest = rest.split("\n")
            yield from whole
            if not ended:
                time.sleep(0.1)


def _end(child: subprocess.Popen[bytes]) -> None:
    """With its own children: it leads a process group."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _environment() -> dict[str, str]:
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TOKENIZERS_PARALLELISM": "false",
    }
