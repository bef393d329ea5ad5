"""Runs beside each other on the same test problems, as `groupwise compare` says it."""

from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.errors import GroupwiseError
from groupwise.view.open_run import OpenRun
from groupwise.view.stored_group import Unreadable
from groupwise.view.untrusted import mapping, number

RESAMPLES = 2000


def compared(runs: Sequence[OpenRun]) -> dict[str, Any]:
    """{"names": [...], "problems": 200, "rows": [...], "notes": [...]}"""
    # numpy is needed here alone, and takes a while to load.
    from groupwise.report.compare import EvaluatedRun, compare

    if not runs:
        raise Unreadable("no run is chosen")
    if len(runs) == 1:
        wanted = [(runs[0], moment, moment) for moment in ("before", "after")]
    else:
        wanted = [(run, "after", run.run.name) for run in runs]
    columns = []
    for run, moment, name in wanted:
        lines = {key: _clean(line) for key, line in run.held_out.lines(moment).items()}
        if not lines:
            raise Unreadable(f"{run.run.name} has no test results {moment} training yet")
        columns.append(EvaluatedRun(name, run.settings()[0], lines))
    try:
        comparison = compare(columns, seed=0, resamples=RESAMPLES).json()
    except (GroupwiseError, ValueError, TypeError, AttributeError) as error:
        raise Unreadable(f"these runs cannot be compared: {error}") from error
    return {name: comparison[name] for name in ("names", "problems", "rows", "notes")}


def _clean(line: Mapping[str, Any]) -> dict[str, Any]:
    """What can be compared of a stored line: numbers, and nothing else."""
    names = ("correct", "sampled", "format", "reward", "tokens", "truncated")
    rewards = {str(name): number(value) for name, value in mapping(line.get("rewards")).items()}
    return {**{name: number(line[name]) for name in names if name in line}, "rewards": rewards}
