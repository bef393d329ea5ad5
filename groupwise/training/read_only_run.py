"""The run folder as ranks other than 0 have it: they read it and never write."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.config import Config
from groupwise.distributed.world import World
from groupwise.tracking.run import RunFolder


def open_run(folder: pathlib.Path, config: Config, world: World) -> RunFolder:
    """Rank 0 locks and prepares the folder, or raises why it cannot; the others only read it."""
    opened: list[RunFolder] = []
    world.first_does(lambda: opened.append(RunFolder(folder, config)))
    return opened[0] if opened else ReadOnlyRun(folder, config)


class ReadOnlyRun(RunFolder):
    def __init__(self, path: pathlib.Path, config: Config) -> None:
        self.path = path
        self.config = config
        self._is_new = False

    def __exit__(self, *_: object) -> None:
        """Rank 0 holds the lock."""

    def rewind(self, step: int, logged: int | None = None) -> None: ...

    def log_evaluation(self, moment: str, problems: Sequence[Mapping[str, Any]]) -> None: ...
