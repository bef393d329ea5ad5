"""One thread, no network: tests give the same numbers on any machine."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# How long an example takes is the machine's affair, and no fault of what is tested.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _quiet_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing a test does may read or write the user's own cache of models."""
    if "GROUPWISE_CACHE" not in os.environ:
        monkeypatch.setenv("GROUPWISE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
