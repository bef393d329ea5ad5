"""One thread, no network: tests give the same numbers on any machine."""

import os
import shutil
import tempfile

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


@pytest.fixture(autouse=True)
def _quiet_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing a test does may read or write the user's own cache of models."""
    if "GROUPWISE_CACHE" not in os.environ:
        monkeypatch.setenv("GROUPWISE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
