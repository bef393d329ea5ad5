"""What we rely on in DeepSpeed beyond its public interface."""

import inspect
import os
from types import SimpleNamespace

import pytest
import torch

from groupwise.compat.deepspeed import (
    disable_shared_memory_collectives,
    read_loss_scale,
    write_loss_scale,
)


@pytest.fixture(autouse=True)
def deepspeed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DS_ACCELERATOR", os.environ.get("DS_ACCELERATOR", "cpu"))
    return pytest.importorskip("deepspeed")


def test_whole_tensors_have_public_functions(deepspeed) -> None:
    for name in (
        *("safe_get_full_fp32_param", "safe_get_full_optimizer_state"),
        *("safe_set_full_fp32_param", "safe_set_full_optimizer_state"),
        *("safe_set_local_fp32_param", "safe_set_local_optimizer_state"),
    ):
        assert callable(getattr(deepspeed.utils, name)), name


def test_zero_optimizers_have_the_attributes_that_we_use(deepspeed) -> None:
    from deepspeed.runtime.zero import partition_parameters, stage3, stage_1_and_2

    one_and_two = stage_1_and_2.DeepSpeedZeroOptimizer
    assert callable(one_and_two._lazy_init_hp_params_optimizer_state)
    assert "self._hp_optimizer_states_linked" in inspect.getsource(one_and_two)
    three = inspect.getsource(stage3.DeepSpeedZeroOptimizer_Stage3)
    assert "self.fp32_partitioned_groups_flat" in three
    partitioned = inspect.getsource(partition_parameters)
    for name in ("param.ds_shape", "param.ds_id", "ds_tensor.ds_numel"):
        assert name in partitioned, name


def test_collectives_over_shared_memory_can_be_turned_off(deepspeed) -> None:
    disable_shared_memory_collectives()
    assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False


def test_the_loss_scale_can_be_read_and_written(deepspeed) -> None:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    scaler = DynamicLossScaler(init_scale=8.0, scale_window=100, min_scale=1.0, delayed_shift=1,
                               consecutive_hysteresis=False, raise_error_at_min_scale=False,
                               dtype=torch.float16)  # fmt: skip
    for overflow in (False, False, False):
        scaler.update_scale(overflow)
    optimizer = SimpleNamespace(loss_scaler=scaler)
    assert read_loss_scale(optimizer) == (8.0, 3)
    write_loss_scale(optimizer, 32.0, 7)
    assert read_loss_scale(optimizer) == (32.0, 7)
