"""Pictures of benchmark results: `python benchmarks/plots.py` draws every record.

A comparison becomes one picture of stacked bars per setting, a sweep one of lines, a long run one
of its steps. They go to docs/images/, where docs/benchmarks.md shows them.
"""

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import matplotlib

from groupwise.check.peak import Peak
from planned import recorded
from sidebyside.floor import floor_seconds
from sidebyside.settings import Measurement, Setting, Size, measurement_from

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parent
IMAGES = ROOT.parent / "docs" / "images"
PHASES = {"generation": "#4477aa", "reference": "#ccbb44", "update": "#ee6677"}
SWEPT = {
    "prompts": "prompts",
    "group": "answers to a prompt",
    "prompt_tokens": "tokens of a prompt",
    "completion_tokens": "tokens of an answer",
}


def draw(path: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    """The pictures of one results file."""
    data = json.loads(path.read_text())
    found = [measurement_from(line) for line in data["results"]]
    results = [result for result in found if isinstance(result, Measurement)]
    folder.mkdir(parents=True, exist_ok=True)
    if path.stem.startswith("sweep"):
        return [_sweep(results, folder / f"{path.stem}.png")]
    if path.stem.endswith("steps"):
        return [_over_time(results[0], folder / f"{path.stem}.png")]
    settings = list(dict.fromkeys(result.setting for result in results))
    names = [f"{path.stem}-{s.lengths}{'-reference' if s.beta else ''}.png" for s in settings]
    return [
        _bars([r for r in results if r.setting == setting], setting, data, folder / name)
        for setting, name in zip(settings, names, strict=True)
    ]


def _bars(
    results: Sequence[Measurement], setting: Setting, data: dict[str, Any], path: pathlib.Path
) -> pathlib.Path:
    figure, axes = plt.subplots(figsize=(7, 0.6 + 0.5 * (len(results) + 1)), layout="constrained")
    rows = [(result.kind, dict(result.seconds)) for result in results]
    ours = next((result for result in results if result.kind == "groupwise"), None)
    if ours is not None and "peak" in data:
        size, peak = Size(**data["size"]), Peak(**data["peak"])
        rows.append(("floor", floor_seconds(setting, size, peak, ours.tokens, ours.longest)))
    names = [name for name, _ in rows]
    left = [0.0] * len(rows)
    for phase, colour in PHASES.items():
        widths = [seconds.get(phase, 0.0) for _, seconds in rows]
        if any(widths):
            axes.barh(names, widths, left=left, color=colour, label=phase)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for place, total in enumerate(left):
        axes.annotate(f" {total:.3g}", (total, place), va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(left))
    axes.set_xlabel("seconds a step")
    axes.set_title(setting.describe(), fontsize=8)
    axes.legend(fontsize=8, loc="lower right")
    return _save(figure, path)


def _sweep(results: Sequence[Measurement], path: pathlib.Path) -> pathlib.Path:
    base = results[0].setting
    figure, panels = plt.subplots(2, 2, figsize=(8, 6), layout="constrained", sharey=True)
    for (name, label), axes in zip(SWEPT.items(), panels.flat, strict=True):
        for kind in dict.fromkeys(result.kind for result in results):
            points = sorted(
                (getattr(result.setting, name), result.seconds["step"])
                for result in results
                if result.kind == kind and _differs_only_in(name, result.setting, base)
            )
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=kind)
        axes.set(xlabel=label, xscale="log", yscale="log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xticks(sorted({getattr(r.setting, name) for r in results}), minor=False)
        axes.minorticks_off()
    panels[0][0].set_ylabel("seconds a step")
    panels[1][0].set_ylabel("seconds a step")
    panels[0][0].legend(fontsize=8)
    figure.suptitle(f"around {base.describe()}", fontsize=8)
    return _save(figure, path)


def _over_time(result: Measurement, path: pathlib.Path) -> pathlib.Path:
    figure, panels = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained")
    columns = {"step": ("seconds a step", 1.0), "held_bytes": ("GiB held", 2.0**30)}
    for axes, (name, (label, unit)) in zip(panels, columns.items(), strict=True):
        axes.plot([step[name] / unit for step in result.every_step], linewidth=1)
        axes.set(xlabel="step", ylabel=label)
        axes.set_ylim(bottom=0)
    figure.suptitle(result.setting.describe(), fontsize=8)
    return _save(figure, path)


def _differs_only_in(name: str, setting: Setting, base: Setting) -> bool:
    return all(getattr(setting, n) == getattr(base, n) for n in SWEPT if n != name)


def _save(figure: Any, path: pathlib.Path) -> pathlib.Path:
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


if __name__ == "__main__":
    there = [path for path in recorded() if not path.stem.startswith("memory")]
    chosen = [pathlib.Path(name) for name in sys.argv[1:]] or sorted(there)
    for source in chosen:
        for picture in draw(source, IMAGES):
            print(picture.relative_to(ROOT.parent))
