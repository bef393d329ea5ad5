"""What GPUs can hold and do: their makers' figures for dense half-precision products.

Memory is what a program finds there, a few percent below the name. `link` is to a GPU of the same
machine, `network` to one of another, both a GPU's own share in one direction.
"""

import os
import re
from dataclasses import dataclass, replace

from groupwise.errors import ConfigError

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """Gpu("h200", memory=139.8 GiB, 4.8 TB/s, 989 TFLOP/s, 450 GB/s, 50 GB/s)"""

    name: str
    memory: float
    """Bytes."""
    bandwidth: float
    """Bytes a second, of its own memory."""
    flops: float
    """A second: dense bf16 with fp32 sums. A CPU's: fp32."""
    link: float
    """Bytes a second to a neighbour in the same machine."""
    network: float
    """Bytes a second to another machine."""
    is_cpu: bool = False

    @property
    def products(self) -> float:
        """FLOP/s that a large matrix product reaches; a CPU's figure is measured already."""
        return self.flops * (1.0 if self.is_cpu else 0.8)

    @property
    def copies(self) -> float:
        """Bytes a second that a large copy reaches."""
        return self.bandwidth * (1.0 if self.is_cpu else 0.875)


def _gpu(name: str, gib: float, gb_s: float, tflops: float, link: float, network: float) -> Gpu:
    return Gpu(name, gib * GIB, gb_s * 1e9, tflops * 1e12, link * 1e9, network * 1e9)


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("rtx3060", 11.6, 360, 25.5, 12, 1.2),
        _gpu("rtx4080", 15.6, 717, 97.5, 25, 3),
        _gpu("rtx4090", 23.5, 1008, 165, 25, 3),
        _gpu("rtx5090", 31.3, 1792, 209, 50, 3),
        _gpu("l4", 22.0, 300, 121, 25, 3),
        _gpu("a10", 22.0, 600, 125, 25, 3),
        _gpu("a100-40", 39.4, 1555, 312, 300, 25),
        _gpu("a100-80", 79.2, 2039, 312, 300, 25),
        _gpu("h100", 79.1, 3350, 989, 450, 50),
        _gpu("h200", 139.8, 4800, 989, 450, 50),
        _gpu("b200", 178.0, 8000, 2250, 900, 50),
    )
}
"""In one machine: PCIe for the cards, NVLink from the A100 on. Between machines: 10 or 25 Gbit/s
for the cards, 200 or 400 Gbit/s a GPU for the others."""

GPUS_A_MACHINE = 8


def find_gpu(name: str) -> Gpu:
    """find_gpu("h100"), ("H100"), ("NVIDIA GeForce RTX 4090"), ("cpu")"""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if plain == "cpu":
        return this_cpu()
    known = {re.sub(r"[^a-z0-9]", "", key): gpu for key, gpu in GPUS.items()}
    if plain in known:
        return known[plain]
    if "a100" in plain:
        return GPUS["a100-40" if "40" in plain else "a100-80"]
    for key, gpu in known.items():
        if plain.startswith("nvidia") and key in plain:
            return gpu
    raise ConfigError(f"no figures for the GPU {name!r}; there are {', '.join(GPUS)}, cpu")


def this_cpu() -> Gpu:
    """This machine's memory; its speed as measured on two cores of a Xeon at 2.5 GHz, by core."""
    cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bandwidth = 33e9 * max(1.0, cores / 8)
    return Gpu("cpu", memory, bandwidth, 97e9 * cores, 10e9, 1e9, is_cpu=True)


def gpu_like(name: str, memory: int) -> Gpu:
    """A GPU that is here: its own memory, with the figures of its name, or else of an A10."""
    try:
        known = find_gpu(name)
    except ConfigError:
        known = GPUS["a10"]
    return replace(known, name=name, memory=memory)
