"""What the kernels of a decode step share: counters, and what the GPU has and can do."""

from functools import cache

import torch
from torch import Tensor

COUNTERS = 2**16


@cache
def arrival_counters(device: torch.device) -> Tensor:
    """With which a kernel's programs find out who comes last: zeros between two launches.

    Kept forever, since CUDA graphs point to it. Launches on one stream share it.
    """
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@cache
def overlaps_launches(device: torch.device) -> bool:
    """Programmatic dependent launch: NVIDIA's GPUs from Hopper on have it."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that one program can have: what a multiprocessor has, but for a kilobyte."""
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor - 1024
