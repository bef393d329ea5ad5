"""Counters with which programs of a kernel find out who of them comes last."""

from functools import cache

import torch
from torch import Tensor

COUNTERS = 2**16


@cache
def arrival_counters(device: torch.device) -> Tensor:
    """How many programs are done with each piece of work: zeros between two launches.

    Kept forever, since CUDA graphs point to it. Launches on one stream share it.
    """
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)
