"""accelerate, set up for FSDP2 and DeepSpeed more than once in a process, and FSDP2 on a CPU."""

import os
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh


def reset_accelerate() -> None:
    """Forget accelerate's state of this process: its first use, and what its launcher asked for."""
    from accelerate.state import AcceleratorState

    for name in ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP"):
        os.environ.pop(name, None)
    AcceleratorState._reset_state(reset_partial_state=True)


def prepare_fsdp2(model: torch.nn.Module, device: torch.device, plugin: Any, ranks: int) -> None:
    """Shards the model as the plugin says, over the process group that there is.

    accelerate refuses FSDP on a CPU, where torch has it: there the plugin and the device mesh are
    set on its state directly. (A mesh made by torch would be on a GPU if the machine has one.)
    """
    from accelerate import Accelerator
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    reset_accelerate()
    accelerator = Accelerator(cpu=device.type == "cpu", fsdp_plugin=plugin)
    if device.type == "cpu":
        names = ("ranks",)
        state: Any = accelerator.state
        state.fsdp_plugin = plugin
        state.device_mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=names)
        state.parallelism_config = SimpleNamespace(fsdp_dim_names=names)
    fsdp2_prepare_model(accelerator, model)
