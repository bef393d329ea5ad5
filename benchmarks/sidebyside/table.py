"""Results as text. Ratios are someone's seconds over groupwise's: above 1, groupwise is faster."""

from collections.abc import Sequence

from groupwise.check.peak import Peak
from sidebyside.floor import floor_seconds
from sidebyside.settings import Failure, Measurement, Setting, Size

PHASES = ("generation", "reference", "update", "step")
COLUMNS = (*PHASES, "first", "tokens/s", "peak GiB", "generation x", "step x")
HEAD = f"{'seconds':<20}" + "".join(f"{name:>13}" for name in COLUMNS)


def tables(results: Sequence[Measurement | Failure], size: Size | None, peak: Peak | None) -> str:
    """A table for each setting, in the order in which settings were first measured."""
    settings = list(dict.fromkeys(result.setting for result in results))
    return "\n\n".join(_table(setting, results, size, peak) for setting in settings)


def row(result: Measurement | Failure, ours: Measurement | None = None) -> str:
    """One line; with ratios to `ours` where there is one to compare with."""
    if isinstance(result, Failure):
        return f"{result.kind:<20}  {result.why}"
    seconds = result.seconds
    cells = [_cell(seconds.get(phase)) for phase in PHASES]
    whole = seconds.get("step", seconds["generation"])
    cells += [_cell(result.notes.get("first"))]
    cells += [_cell(result.tokens / whole), _cell(result.peak_bytes / 2**30 or None)]
    for phase in ("generation", "step"):
        known = ours is not None and phase in seconds and result is not ours
        cells.append(_cell(seconds[phase] / ours.seconds[phase] if known and ours else None))
    return f"{result.kind:<20}" + "".join(f"{cell:>13}" for cell in cells)


def step_ratio(results: Sequence[Measurement | Failure]) -> float | None:
    """The fastest TRL's step over groupwise's as it comes, at the first setting that has both."""
    for setting in dict.fromkeys(result.setting for result in results):
        ours = find(results, setting, "groupwise")
        theirs = [
            result.seconds["step"]
            for result in results
            if isinstance(result, Measurement)
            and result.setting == setting
            and result.kind.startswith("trl")
        ]
        if ours is not None and theirs:
            return min(theirs) / ours.seconds["step"]
    return None


def find(
    results: Sequence[Measurement | Failure], setting: Setting, kind: str
) -> Measurement | None:
    for result in results:
        if isinstance(result, Measurement) and (result.setting, result.kind) == (setting, kind):
            return result
    return None


def _table(
    setting: Setting,
    results: Sequence[Measurement | Failure],
    size: Size | None,
    peak: Peak | None,
) -> str:
    ours = find(results, setting, "groupwise")
    lines = [setting.describe(), HEAD]
    lines += [row(result, ours) for result in results if result.setting == setting]
    if ours is not None and size is not None and peak is not None:
        floor = floor_seconds(setting, size, peak, ours.tokens, ours.longest)
        away = [ours.seconds[phase] / floor[phase] if floor[phase] else None for phase in PHASES]
        lines.append(f"{'floor':<20}" + "".join(f"{_cell(floor[p] or None):>13}" for p in PHASES))
        lines.append(f"{'groupwise / floor':<20}" + "".join(f"{_cell(x):>13}" for x in away))
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    if value is None or value == 0:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
