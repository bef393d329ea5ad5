"""The settings of `groupwise train --launch ray`."""

from pydantic import Field

from groupwise.config.base import Settings


class RaySettings(Settings):
    """What `groupwise train --launch ray` asks a Ray cluster for; see docs/ray.md."""

    workers: int = Field(default=2, ge=1)
    """Processes that train together, wherever the cluster has room; `--nproc` overrides it."""
    cpus: float = Field(default=1.0, gt=0)
    """CPUs that Ray reserves for each."""
    gpus: float | None = Field(default=None, ge=0)
    """GPUs for each (None: one, unless device=cpu or the cluster has none)."""
    max_failures: int = Field(default=3, ge=-1)
    """How often lost workers are started again, from the last checkpoint (-1: always)."""
    address: str = "auto"
    """auto: RAY_ADDRESS, or the cluster of this machine. local: start one for this run."""
