"""The settings of sampling in processes of their own, and the schedule that follows from them."""

from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from groupwise.config.addresses import TokenVariable, check_server_url
from groupwise.config.base import Settings


class WorkerSettings(Settings):
    """Sampling in processes of their own, here or on other machines, while the trainer trains."""

    count: int = Field(default=0, ge=0, le=64)
    """Processes to start on this machine (0, and no urls: answers are sampled in the trainer)."""
    urls: tuple[str, ...] = ()
    """Where `groupwise serve rollouts` listens, such as http://10.0.0.2:8660."""
    publish_every: int = Field(default=1, ge=1)
    """Updates between two sets of weights that workers get."""
    max_staleness: int = Field(default=1, ge=0)
    """Most updates that the weights behind an answer may lack; 0: the trainer waits for answers."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds to wait for a reply before a worker counts as gone and its work goes to another."""
    token_env: TokenVariable = "GROUPWISE_TOKEN"
    """The environment variable that holds the token of the workers at `urls`."""

    @field_validator("urls")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            check_server_url(url)
        if len(set(value)) < len(value):
            raise ValueError(f"each address may be named once, not {list(value)}")
        return value

    @model_validator(mode="after")
    def _bound_can_be_kept(self) -> "WorkerSettings":
        if self.publish_every > self.max_staleness + 1:
            raise ValueError(
                f"with publish_every={self.publish_every} answers are up to "
                f"{self.publish_every - 1} updates old: raise max_staleness "
                f"({self.max_staleness}) to that, or lower publish_every"
            )
        return self

    @property
    def apart(self) -> bool:
        """Whether there are any workers."""
        return self.count > 0 or bool(self.urls)

    @property
    def staleness(self) -> int:
        """The bound that holds: without workers answers are never old."""
        return self.max_staleness if self.apart else 0

    @property
    def ahead(self) -> int:
        """Steps by which sampling runs ahead of training at the least."""
        return self.max_staleness - (self.publish_every - 1)

    def version_for(self, step: int) -> int:
        """Which weights, counted in updates, sample step number `step` (from 0).

        A function of the step alone: never of how fast anything was, so that a run can be repeated
        and resumed exactly. step - version_for(step) is at most max_staleness.
        """
        behind = max(0, step - self.ahead)
        return behind - behind % self.publish_every


def staleness_in(data: Any) -> int:
    """`staleness` of settings that are still to be validated; 0 where they cannot be."""
    try:
        return WorkerSettings.model_validate({} if data is None else data).staleness
    except ValidationError:
        return 0
