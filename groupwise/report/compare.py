"""`groupwise compare`: runs side by side on the same test problems, with 95 % intervals.

The bootstrap is paired: a resample draws problems, and every run is averaged over the same draw,
so what makes a problem easy or hard for all runs cancels out of a difference. The intervals are
over problems. They do not say what another training seed would have given.
"""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from groupwise.config.flat import leaves
from groupwise.errors import RunFolderError
from groupwise.recipe import read_yaml
from groupwise.tracking.run import read_lines, run_folder

RESAMPLES = 10_000
AT_ONCE = 4_000_000
"""Problems drawn at once: a bound on memory, whatever the number of problems."""
FEW = 30
"""Below so many problems a bootstrap interval is too narrow to be trusted."""

# How a difference above 0 and one below it are called.
WORDS = {"tokens": ("longer", "shorter"), "truncated": ("worse", "better")}
NO_DIFFERENCE = "no difference seen"
LABELS = {"correct": "accuracy (greedy)", "sampled": "accuracy (sampled)", "truncated": "cut off"}
SHARES = ("correct", "sampled", "format", "truncated")
COLOURS = {"better": "green", "worse": "red"}


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MetricDifference(Interval):
    """Against the first column. `word`: better, worse, longer, shorter, or no difference seen."""

    word: str


@dataclass(frozen=True)
class ComparedMetric:
    """One metric. `differences` has an entry less than `values`: the first is what others meet."""

    metric: str
    values: tuple[Interval, ...]
    differences: tuple[MetricDifference, ...]


@dataclass(frozen=True)
class Comparison:
    names: tuple[str, ...]
    problems: int
    rows: tuple[ComparedMetric, ...]
    settings: dict[str, tuple[Any, ...]]
    """Settings that differ: name -> one value a column."""
    notes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """JSON has no word for nan but null."""
        return json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)


@dataclass(frozen=True)
class EvaluatedRun:
    """One evaluation: where it comes from, and a line for each problem."""

    name: str
    settings: Mapping[str, Any]
    problems: Mapping[tuple[str, str], Mapping[str, Any]]


def compare_runs(runs: Sequence[pathlib.Path], *, seed: int = 0) -> Comparison:
    """The runs after training; a single run, before against after."""
    if not runs:
        raise RunFolderError("name at least one run folder to compare")
    if len(runs) == 1:
        columns = [read_column(runs[0], "before", "before"), read_column(runs[0], "after", "after")]
    else:
        columns = [read_column(run, "after", str(run)) for run in runs]
    return compare(columns, seed=seed)


def read_column(run: pathlib.Path, moment: str, name: str) -> EvaluatedRun:
    config, stored = run_folder(run) / "config.yaml", run / "eval" / f"{moment}.jsonl"
    if not stored.is_file():
        reason = (
            "it is not finished: the same `groupwise train` command goes on with it"
            if not (run / "summary.json").is_file()
            else "it was made before they were stored: train it again"
        )
        raise RunFolderError(f"{run} has no test results ({stored.name}); {reason}")
    lines = read_lines(stored)
    try:
        problems = {(str(line["id"]), str(line["question"])): line for line in lines}
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"{stored} is damaged: a line has no id and question") from error
    return EvaluatedRun(name, leaves(read_yaml(config)), problems)


def compare(columns: Sequence[EvaluatedRun], *, seed: int) -> Comparison:
    shared = [k for k in columns[0].problems if all(k in c.problems for c in columns[1:])]
    if not shared:
        kinds = ", ".join(f"{c.name}: {c.settings.get('task.kind')}" for c in columns)
        raise RunFolderError(
            f"the runs share no test problem, so nothing can be paired ({kinds}). Compare runs "
            "of the same task, with the same task settings"
        )
    values = {m: _values(m, columns, shared) for m in _metrics(columns)}
    names = tuple(column.name for column in columns)
    return Comparison(
        names,
        len(shared),
        tuple(_rows(values, seed)),
        _differing(columns),
        tuple(_notes(columns, len(shared))),
    )


def _metrics(columns: Sequence[EvaluatedRun]) -> list[str]:
    """What every column measured, in the order of the first."""
    lines = [next(iter(column.problems.values())) for column in columns]
    plain = ["correct", "sampled", "format", "tokens", "truncated", "reward"]
    shared = [m for m in plain if all(m in line for line in lines)]
    first, *others = [line.get("rewards") or {} for line in lines]
    return shared + [f"rewards/{n}" for n in first if all(n in other for other in others)]


def _values(
    metric: str, columns: Sequence[EvaluatedRun], shared: Sequence[tuple[str, str]]
) -> NDArray[np.float64]:
    """values_CP: a line a column, nan where an answer was not scored."""
    return np.array([[_number(c.problems[key], metric) for key in shared] for c in columns])


def _number(line: Mapping[str, Any], metric: str) -> float:
    head, _, reward = metric.partition("/")
    value = line.get(head)
    if reward:
        value = value.get(reward) if isinstance(value, dict) else None
    if isinstance(value, list):
        value = sum(value) / len(value) if value else None
    return float("nan") if value is None else float(value)


def _rows(values: Mapping[str, NDArray[np.float64]], seed: int) -> list[ComparedMetric]:
    """Every mean and difference of every metric from the same resamples."""
    wanted: list[NDArray[np.float64]] = []
    for values_CP in values.values():
        wanted += [*values_CP, *(values_CP[1:] - values_CP[0])]
    means, low, high = bootstrap(np.array(wanted), seed)
    rows, at = [], 0
    for metric, values_CP in values.items():
        count = len(values_CP)
        own = [Interval(means[i], low[i], high[i]) for i in range(at, at + count)]
        differing = range(at + count, at + 2 * count - 1)
        differences = [
            MetricDifference(means[i], low[i], high[i], word_for(metric, low[i], high[i]))
            for i in differing
        ]
        rows.append(ComparedMetric(metric, tuple(own), tuple(differences)))
        at += 2 * count - 1
    return rows


def bootstrap(
    lines_LP: NDArray[np.float64], seed: int, resamples: int = RESAMPLES
) -> tuple[list[float], list[float], list[float]]:
    """Means of each line over its known (not nan) problems, and their 95 % percentile bounds."""
    problems = lines_LP.shape[1]
    known_LP = ~np.isnan(lines_LP)
    filled_PL, weights_PL = np.where(known_LP, lines_LP, 0.0).T, known_LP.astype(float).T
    draws = np.random.default_rng(seed)
    parts = []
    block = max(1, AT_ONCE // problems)
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        drawn = draws.integers(problems, size=(count, problems))
        offsets = np.arange(count)[:, None] * problems
        times = np.bincount((drawn + offsets).ravel(), minlength=count * problems)
        times_RP = times.reshape(count, problems).astype(float)
        with np.errstate(invalid="ignore"):  # a resample without any known problem is no number
            parts.append((times_RP @ filled_PL) / (times_RP @ weights_PL))
    means_RL = np.concatenate(parts)
    with np.errstate(invalid="ignore"):
        means = filled_PL.sum(0) / weights_PL.sum(0)
    some = known_LP.any(1)
    bounds = np.full((2, len(lines_LP)), np.nan)
    bounds[:, some] = np.nanpercentile(means_RL[:, some], [2.5, 97.5], axis=0)
    return means.tolist(), bounds[0].tolist(), bounds[1].tolist()


def word_for(metric: str, low: float, high: float) -> str:
    """A difference is one only if its interval leaves out 0 (by more than rounding)."""
    above, below = WORDS.get(metric, ("better", "worse"))
    return above if low > 1e-12 else below if high < -1e-12 else NO_DIFFERENCE


def _differing(columns: Sequence[EvaluatedRun]) -> dict[str, tuple[Any, ...]]:
    names = dict.fromkeys(name for column in columns for name in column.settings)
    rows = {name: tuple(column.settings.get(name) for column in columns) for name in names}
    return {name: values for name, values in rows.items() if any(v != values[0] for v in values)}


def _notes(columns: Sequence[EvaluatedRun], shared: int) -> list[str]:
    notes = []
    if any(len(column.problems) > shared for column in columns):
        sizes = " and ".join(str(len(column.problems)) for column in columns)
        notes.append(
            f"evaluated on {sizes} problems: only the {shared} that all share are compared"
        )
    if shared < FEW:
        notes.append(f"only {shared} problems: these intervals are too narrow to be trusted")
    return notes


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The means of each run; under each but the first, its difference from the first."""
    table = Table(title=f"{comparison.problems} test problems, 95 % intervals")
    table.add_column("")
    for name in comparison.names:
        table.add_column(escape(name), justify="right", overflow="fold")
    for row in comparison.rows:
        share = row.metric in SHARES
        label = LABELS.get(row.metric, row.metric.replace("rewards/", "reward: "))
        cells = [_shown(value, share) for value in row.values]
        for index, difference in enumerate(row.differences, start=1):
            colour = COLOURS.get(difference.word, "dim")
            signed = _shown(difference, share, sign="+")
            cells[index] += f"\n[{colour}]{signed}: {difference.word}[/]"
        table.add_row(escape(label), *cells)
    console.print(table)
    if comparison.settings:
        settings = Table(title="settings that differ")
        for name in ("", *comparison.names):
            settings.add_column(escape(name), overflow="fold")
        for name, values in comparison.settings.items():
            settings.add_row(escape(name), *(escape(str(value)[:200]) for value in values))
        console.print(settings)
    for note in comparison.notes:
        console.print(f"note: {note}", highlight=False, markup=False)


def _shown(interval: Interval, share: bool, sign: str = "") -> str:
    if math.isnan(interval.value):
        return "not scored"
    form, factor = (f"{{:{sign}.1f}}", 100.0) if share else (f"{{:{sign}.3g}}", 1.0)
    value, low, high = (
        form.format(number * factor + 0.0)
        for number in (interval.value, interval.low, interval.high)
    )
    unit = (" points" if sign else " %") if share else ""
    return f"{value}{unit} ({low} to {high})"
