"""What we rely on in accelerate beyond its public interface."""

import inspect
import os

import pytest
from accelerate.state import AcceleratorState
from accelerate.utils import fsdp_utils

from groupwise.compat.accelerate import reset_accelerate


def test_its_state_can_be_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "reset_partial_state" in inspect.signature(AcceleratorState._reset_state).parameters
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    reset_accelerate()
    assert "ACCELERATE_USE_FSDP" not in os.environ
    assert AcceleratorState._shared_state == {}


def test_fsdp2_preparation_reads_what_we_set_on_its_state() -> None:
    source = inspect.getsource(fsdp_utils.fsdp2_prepare_model)
    for name in ("state.fsdp_plugin", "fsdp_dim_names", "device_mesh"):
        assert name in source, name
