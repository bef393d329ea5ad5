"""What a run writes, and how much of it stays."""

from typing import Annotated

from pydantic import Field

from groupwise.config.base import Settings
from groupwise.extensions import Code


class CheckpointSettings(Settings):
    """When checkpoints are saved, and how many are kept."""

    every: int = Field(default=10, ge=0)
    """Steps between checkpoints (0: only at the end)."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest checkpoints are kept."""


class TrackingSettings(Settings):
    """Where metrics go, beside the console and metrics.jsonl."""

    tensorboard: bool = True
    """Event files under the run folder's events/."""
    trackio: bool = False
    """Extra: pip install 'groupwise[trackio]'."""
    wandb: bool = False
    """Extra: pip install 'groupwise[wandb]'."""
    own: Annotated[tuple[str, ...], Code("tracker")] = ()
    """Trackers of yours: `file.py:Class`, made with the run's folder and config."""
    project: str = "groupwise"
    """Project name for trackio and wandb."""
    rollouts: int = Field(default=1, ge=0)
    """Store every n-th step's answers, compressed (0: none)."""
    keep_rollouts: int | None = Field(default=None, ge=1)
    """How many of the newest stored steps are kept (None: all)."""
