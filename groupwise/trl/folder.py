"""A run's folder under TRL's output_dir: an earlier run there, and checkpoints by TRL's names."""

import os
import pathlib
import re
from typing import Literal

from groupwise.errors import RunFolderError
from groupwise.tracking.run import BEFORE, OWN, RunFolder, keep_earlier_run
from groupwise.tracking.whole import writing
from groupwise.training.checkpoint import newest_checkpoint

LINK = re.compile(r"checkpoint-(\d+)")
AT_THE_END = ("best", "model", "summary.json", "report.html", "reward.png", "trainer_state.json")


def set_earlier_run_aside(path: pathlib.Path) -> None:
    """`train()` without `resume_from_checkpoint` begins anew. What an earlier run left in the
    folder is kept in before-restart-1 (2, ...) inside it; other files stay where they are."""
    entries = [p for p in path.iterdir() if _is_of_a_run(p.name)] if path.is_dir() else []
    keep_earlier_run(path, entries)


def _is_of_a_run(name: str) -> bool:
    own = OWN.fullmatch(name) and name != ".lock" and not name.startswith(BEFORE)
    return bool(own or name in AT_THE_END or LINK.fullmatch(name))


def checkpoint_to_resume(
    run: RunFolder, wanted: str | os.PathLike[str] | Literal[True], updates: int
) -> pathlib.Path:
    """True: the newest. Else a path such as out/checkpoint-30, by optimizer steps."""
    if wanted is True:
        newest = newest_checkpoint(run.checkpoints)
        if newest is None:
            raise RunFolderError(f"no valid checkpoint found in output directory ({run.path})")
        return newest
    named = pathlib.Path(wanted)
    link = LINK.fullmatch(named.name)
    folder = run.checkpoints / (f"step-{int(link[1]) // updates:06d}" if link else named.name)
    if not folder.is_dir():
        raise RunFolderError(f"cannot resume from {named}: there is no checkpoint {folder}")
    return folder


def link_checkpoints(run: RunFolder, updates: int) -> None:
    """out/checkpoint-30 is the model of checkpoints/step-000030: that is where TRL has it."""
    with writing(run.path):
        for link in run.path.glob("checkpoint-*"):
            if link.is_symlink():
                link.unlink()
        for folder in run.checkpoints.glob("step-??????"):
            link = run.path / f"checkpoint-{int(folder.name[5:]) * updates}"
            if not os.path.lexists(link):
                link.symlink_to(pathlib.Path("checkpoints") / folder.name / "model")
