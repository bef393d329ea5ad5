"""What this machine can do at best: one large matrix product, one large copy."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch


@dataclass(frozen=True)
class Peak:
    flops: float
    """Per second, in one large matrix product of the precision that is trained in."""
    bytes: float
    """Per second, read and written in one large copy."""


def measure_peak(device: str) -> Peak:
    cuda = device == "cuda"
    side, dtype = (8192, torch.bfloat16) if cuda else (2048, torch.float32)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    multiply = _best(lambda: torch.mm(a, b, out=out), cuda)
    source = torch.empty(2**31 if cuda else 2**29, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = _best(lambda: target.copy_(source), cuda)
    return Peak(2 * side**3 / multiply, 2 * source.numel() / copy)


def bf16_speed() -> float:
    """How many times as fast as in fp32 a matrix product in bf16 is on this CPU."""
    sides = torch.randn(512, 512), torch.randn(512, 512).bfloat16()
    whole, half = (_best(partial(torch.mm, side, side), cuda=False) for side in sides)
    return whole / half


def _best(work: Callable[[], object], cuda: bool) -> float:
    """Seconds of the fastest of several calls: interruptions only ever make one slower."""
    seconds = []
    for _ in range(8):
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])
