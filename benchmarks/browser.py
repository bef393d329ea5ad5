"""A viewer process, and a headless Chromium for it: for the benchmark, pictures and tests."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def why_no_browser() -> str | None:
    """What is missing to open a page, or None."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install playwright"
    if _chromium() is None:
        return "no Chromium: apt-get install chromium, or playwright install chromium"
    return None


def _chromium() -> str | None:
    """One that the system has; else the one that playwright installed."""
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is not None:
        return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


@contextmanager
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    # As root, which is how containers run, Chromium's own sandbox cannot be set up.
    options = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    path = _chromium()
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=options)
        yield opened
        opened.close()


@dataclass(frozen=True)
class Served:
    """A viewer that runs: its address, the seconds until it was printed, and its process."""

    address: str
    seconds: float
    pid: int

    @property
    def cpu_seconds(self) -> float:
        """What it has computed so far: the same on a busy machine as on an idle one."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    @property
    def megabytes(self) -> float:
        return psutil.Process(self.pid).memory_info().rss / 1e6


@contextmanager
def viewer(*runs: Path) -> Iterator[Served]:
    command = [sys.executable, "-m", "groupwise", "view", *map(str, runs)]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--no-browser", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), "the viewer printed no address"
        yield Served(address, time.perf_counter() - began, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=20)
