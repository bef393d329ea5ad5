"""The insides of DeepSpeed's ZeRO optimizers: fp32 weights, moments and the fp16 loss scale.

Whole tensors go through `deepspeed.utils.safe_get_full_*` and `safe_set_local_*`, which are public.
What they lack is here: linking moments before the first step, and stage 3's partition sizes.
"""

from typing import Any

import torch
from torch import Tensor


def disable_shared_memory_collectives() -> None:
    """On a CPU DeepSpeed would compile such collectives, which hang when a rank dies."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def link_moments(zero_optimizer: Any) -> None:
    """Stages 1 and 2: let weights find their moments.

    DeepSpeed does so in its first step, when only the first group of weights has any.
    """
    zero_optimizer._hp_optimizer_states_linked = False
    zero_optimizer._lazy_init_hp_params_optimizer_state()


def stage3_partitions(zero_optimizer: Any) -> list[Tensor]:
    """This rank's flat fp32 weights, which the inner optimizer keeps its state for."""
    return zero_optimizer.fp32_partitioned_groups_flat


def get_full(weight: Any, key: str | None) -> Tensor:
    """Stages 1 to 3: the whole fp32 weight (key None) or a moment; all ranks call it together."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    full = safe_get_full_optimizer_state(weight, key) if key else safe_get_full_fp32_param(weight)
    assert full is not None
    return full.view(weight.ds_shape) if hasattr(weight, "ds_shape") else full


def set_full(weight: Any, value: Tensor, key: str | None, rank: int, world_size: int) -> None:
    """Stages 1 to 3: this rank's part of a whole tensor into the fp32 weight or a moment."""
    from deepspeed import utils

    if hasattr(weight, "ds_id"):  # stage 3
        size = weight.ds_tensor.ds_numel
        padded = torch.zeros(size * world_size)
        padded[: value.numel()] = value.flatten()
        part = padded[rank * size :][:size].to(weight.device)
        if key:
            utils.safe_set_local_optimizer_state(weight, part, key)
        else:
            utils.safe_set_local_fp32_param(weight, part)
    elif key:
        utils.safe_set_full_optimizer_state(weight, value.to(weight.device), key)
    else:
        utils.safe_set_full_fp32_param(weight, value.to(weight.device))


def read_loss_scale(zero_optimizer: Any) -> tuple[float, int]:
    """fp16: the scale, and the steps since the last overflow."""
    scaler = zero_optimizer.loss_scaler
    return scaler.cur_scale, scaler.cur_iter - scaler.last_overflow_iter - 1


def write_loss_scale(zero_optimizer: Any, scale: float, clean_steps: int) -> None:
    scaler = zero_optimizer.loss_scaler
    scaler.cur_scale, scaler.last_overflow_iter = scale, scaler.cur_iter - clean_steps - 1
