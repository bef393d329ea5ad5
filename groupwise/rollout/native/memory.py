"""How much memory may be planned with."""

import os

import torch


def free_bytes(device: torch.device) -> int:
    """Memory that is free, with what torch's allocator holds and does not use."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + held
    # Half of it: the rest of the step needs memory too, and other programs do.
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
