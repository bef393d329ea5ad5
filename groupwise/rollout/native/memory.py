"""How much memory may be planned with, and memory that is taken as it is needed."""

import math
import os

import numpy as np
import torch
from torch import Tensor


def free_bytes(device: torch.device) -> int:
    """Memory that is free, with what torch's allocator holds and does not use."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + held
    # Half of it: the rest of the step needs memory too, and other programs do.
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def zeros_on_demand(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU they take memory only where they are written to (numpy calls calloc)."""
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    memory = np.zeros(math.prod(sizes) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(memory).view(dtype).view(sizes)
