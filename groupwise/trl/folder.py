"""A run's folder under TRL's output_dir: an earlier run there, and checkpoints by TRL's names."""

import logging
import os
import pathlib
import re
from dataclasses import asdict
from typing import Any, Literal

from groupwise.diagnose import diagnose_outcome
from groupwise.errors import RunFolderError
from groupwise.report.run_page import write_report
from groupwise.report.terminal import print_findings, save_curve
from groupwise.tracking.console import console
from groupwise.tracking.run import BEFORE, OWN, RunFolder, read_metrics
from groupwise.tracking.whole import link_equal_files, replace_folder, writing
from groupwise.training.checkpoint import newest_checkpoint, save_model
from groupwise.training.state import TrainState

log = logging.getLogger("groupwise")

LINK = re.compile(r"checkpoint-(\d+)")
AT_THE_END = ("best", "model", "summary.json", "report.html", "reward.png", "trainer_state.json")


def set_earlier_run_aside(path: pathlib.Path) -> None:
    """`train()` without `resume_from_checkpoint` begins anew. What an earlier run left in the
    folder is kept in before-restart-1 (2, ...) inside it; other files stay where they are."""
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    if not {"config.yaml", "metrics.jsonl", "checkpoints"} & set(names):
        return
    number = 1
    while (kept := path / f"{BEFORE}{number}").exists():
        number += 1
    with writing(kept):
        kept.mkdir()
        for name in names:
            own = OWN.fullmatch(name) and name != ".lock" and not name.startswith(BEFORE)
            if own or name in AT_THE_END or LINK.fullmatch(name):
                os.replace(path / name, kept / name)
    log.info("%s begins anew; what was there is in %s", path, kept)


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


def finish_run(run: RunFolder, state: TrainState, evaluated: dict[str, float], status: str) -> None:
    """The model, the summary, the curve and the report, as every run has them."""
    steps = read_metrics(run.path)
    findings = diagnose_outcome(steps, state.before, evaluated, run.config)
    summary: dict[str, Any] = {
        "status": status,
        "steps": state.step,
        "seconds": state.seconds,
        "before": state.before,
        "after": evaluated,
        "findings": [asdict(finding) for finding in findings],
    }
    replace_folder(run.path / "model", lambda folder: save_model(state, folder))
    with writing(run.path):
        if steps:
            save_curve(steps, run.path / "reward.png", state.before)
        write_report(run.path, summary)
    run.write_summary(summary)
    link_equal_files(run.weight_folders())
    print_findings(findings)
    console.print(f"look at it:  groupwise view {run.path}", highlight=False, markup=False)
