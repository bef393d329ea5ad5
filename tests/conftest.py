"""One thread, no network: tests give the same numbers on any machine."""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Literal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# A change is judged by the same examples everywhere, however long they take there.
# New ones, to find what these do not show: pytest --hypothesis-profile=default
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


IN_MEMORY = "/dev/shm"


def pytest_configure() -> None:
    """Run folders are synced to disk at every step: thousands of times here, where none matters."""
    if os.access(IN_MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(IN_MEMORY).free > 8 * 2**30:
        os.environ.setdefault("TMPDIR", IN_MEMORY)
        tempfile.tempdir = None  # look again


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What imports leave is never garbage: gc need not look at it, nor a forked process copy it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _quiet_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing a test does may read or write the user's own cache of models."""
    if "GROUPWISE_CACHE" not in os.environ:
        monkeypatch.setenv("GROUPWISE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True, scope="module")
def _few_pictures(request: pytest.FixtureRequest) -> Iterator[None]:
    """A run ends with two pictures of its curves, half a second that few tests look at.

    Where they are not what is tested, a file's first two stand for all of its runs.
    """
    from groupwise.report import curves, run_page, terminal

    first: dict[str, bytes] = {}

    def drawn(panels: Mapping[str, Any], form: Literal["svg", "png"]) -> bytes:
        if form not in first:
            first[form] = curves.drawn(panels, form)
        return first[form]

    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name not in ("report", "explain"):
            for module in (run_page, terminal):
                patch.setattr(module, "drawn", drawn)
        yield
