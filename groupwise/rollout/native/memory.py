"""How much memory may be planned with, and memory that is taken as it is needed."""

import math
import os
import resource
import sys
from pathlib import Path

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
    return min(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _addresses_left()) // 2


def _addresses_left() -> int:
    """Bytes that `ulimit -v` lets this process take; they are taken before they are written to."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or sys.platform != "linux":
        return sys.maxsize
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0)


def zeros_on_demand(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU they take memory only where they are written to (numpy calls calloc)."""
    if device.type != "cpu":
        return torch.zeros(sizes, dtype=dtype, device=device)
    memory = np.zeros(math.prod(sizes) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(memory).view(dtype).view(sizes)
