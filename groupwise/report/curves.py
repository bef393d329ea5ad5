"""Metrics over steps as a picture, in tones that are readable on a light and on a dark ground."""

import io
import re
import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Literal

POINTS = 500
COLOURS = ("#3b82c4", "#d9822b", "#3fa46a", "#a46ac4", "#c45a5a", "#8a8a8a")
GREY = "#8a8f99"

Series = dict[str, list[tuple[float, ...]]]
"""Name -> its points (step, value)."""


def series(
    metrics: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    before: Mapping[str, float] | None = None,
) -> Series:
    """At most `POINTS` points of each named metric; "rewards/*" stands for all rewards.

    `before` is the evaluation before training: where the curves of evaluations begin, at step 0.
    """
    points: Series = {}
    for row in metrics:
        for name, value in row.items():
            wanted = name in names or any(n[-1] == "*" and name.startswith(n[:-1]) for n in names)
            if wanted and isinstance(value, int | float):
                points.setdefault(name, []).append((row["step"], value))
    for name, own in points.items():
        start = (before or {}).get(name.removeprefix("eval/")) if name.startswith("eval/") else None
        if start is not None:
            own.insert(0, (0, start))
    return {name: _thinned(own) for name, own in points.items()}


def _thinned(points: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Each point the mean of its neighbours."""
    size = -(-len(points) // POINTS)
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    return [tuple(map(statistics.fmean, zip(*part, strict=True))) for part in parts]


def drawn(panels: Mapping[str, Series], form: Literal["svg", "png"]) -> bytes:
    """The panels, two in a row."""
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot: a notebook's own plots stay as they are

    grey = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    settings: Any = dict.fromkeys(grey, GREY)
    settings |= {"svg.fonttype": "none", "svg.hashsalt": "groupwise", "font.size": 9}
    with matplotlib.rc_context(settings):
        across = min(len(panels), 2)
        lines = -(-len(panels) // across)
        figure = Figure(figsize=(5 * across, 2.7 * lines), dpi=120)
        axes = figure.subplots(lines, across, squeeze=False)
        for spare in axes.flat[len(panels) :]:
            spare.remove()
        for axis, (title, own) in zip(axes.flat, panels.items(), strict=False):
            for colour, (name, points) in zip(cycle(COLOURS), own.items(), strict=False):
                label = re.sub("^(seconds|rewards|episode)/", "", name).lstrip("_")
                label = label.replace("eval/", "validation ")
                marker = "o" if name.startswith("eval/") else ""
                axis.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=3,
                          linewidth=1.3, label=label[:24].replace("$", r"\$"))  # fmt: skip
            axis.set_title(title, loc="right")
            axis.grid(alpha=0.25)
            axis.locator_params(axis="x", nbins=5, integer=True)
            axis.locator_params(axis="y", nbins=5)
            above = {"loc": "lower left", "bbox_to_anchor": (-0.02, 0.97), "ncols": 3}
            axis.legend(framealpha=0, fontsize=8, handlelength=1, columnspacing=1, **above)
        wide, high = figure.get_size_inches()  # the margins are in inches: 1 row, or 4
        edges = (0.5 / wide, 0.3 / high, 1 - 0.15 / wide, 1 - 0.35 / high)
        figure.subplots_adjust(*edges, wspace=0.16, hspace=0.32)
        out = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else None
        figure.savefig(out, format=form, transparent=form == "svg", metadata=metadata)
    return out.getvalue()
