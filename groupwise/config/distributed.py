"""Several processes as one run: what is split over them."""

from typing import Literal

from pydantic import Field, model_validator

from groupwise.config.base import Settings

ZERO_BUCKET = 500_000_000
"""DeepSpeed's own default, in numbers: gradients that are reduced, weights that are gathered."""


class DistributedSettings(Settings):
    """Several processes as one run; see docs/distributed.md. One process ignores all of it."""

    kind: Literal["none", "ddp", "fsdp2", "zero0", "zero1", "zero2", "zero3"] = "none"
    """What is split over the processes; none: ddp when there are several. zero: DeepSpeed's."""
    offload_optimizer: bool = False
    """zero1 to zero3: moments and fp32 weights in CPU memory. Others: see optimizer.offload."""
    offload_parameters: bool = False
    """fsdp2, zero3: parameters in CPU memory while they are not used; fsdp2: moments too."""
    bucket_size: int = Field(default=ZERO_BUCKET, ge=1_000_000)
    """zero: elements of a communication bucket; smaller ones need less memory and more time."""
    timeout: float = Field(default=1800.0, gt=0)
    """Seconds that a process waits for another before it gives up."""

    @model_validator(mode="after")
    def _offloads_what_it_can(self) -> "DistributedSettings":
        if self.offload_parameters and self.kind not in ("fsdp2", "zero3"):
            raise ValueError(
                f"offload_parameters needs kind=fsdp2 or zero3, not {self.kind}: elsewhere every "
                "process holds all parameters"
            )
        if self.offload_optimizer and self.kind not in ("zero1", "zero2", "zero3"):
            raise ValueError(
                f"offload_optimizer needs kind=zero1, zero2 or zero3, not {self.kind}: use "
                + ("offload_parameters=true" if self.kind == "fsdp2" else "optimizer.offload=true")
            )
        return self
