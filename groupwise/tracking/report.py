"""The end of a run: model before against after, and the reward curve in terminal and PNG."""

import pathlib
from collections.abc import Mapping, Sequence

from rich.table import Table

from groupwise.tracking.console import console

_ROWS = {
    "accuracy": ("accuracy (greedy)", "{:.1%}"),
    "sampled": ("accuracy (sampled)", "{:.1%}"),
    "format": ("format", "{:.1%}"),
    "reward": ("reward", "{:.3f}"),
    "tokens": ("tokens per answer", "{:.1f}"),
    "truncated": ("cut off", "{:.1%}"),
}


def before_after_table(
    before: Mapping[str, float], after: Mapping[str, float], title: str
) -> Table:
    table = Table(title=title)
    for name in ("", "before", "after", "change"):
        table.add_column(name, justify="left" if not name else "right")
    rows = dict(_ROWS)
    for key in after:
        if "@" in key:
            rows[key] = (key, "{:.1%}")
        elif key.startswith("rewards/"):
            rows[key] = (key.replace("rewards/", "reward: "), "{:.3f}")
    for key, (label, form) in rows.items():
        if key in after and key in before:
            change = form.replace("{:", "{:+").format(after[key] - before[key])
            table.add_row(label, form.format(before[key]), form.format(after[key]), change)
    return table


def metrics_table(metrics: Mapping[str, float], title: str) -> Table:
    table = Table(title=title, show_header=False)
    for key, value in metrics.items():
        label, form = _ROWS.get(key, (key, "{:.1%}" if "@" in key else "{:.4g}"))
        table.add_row(label, form.format(value))
    return table


def print_curve(rewards: Sequence[float]) -> None:
    """The reward curve as text, as wide as the terminal allows."""
    import plotext

    plotext.clear_figure()
    plotext.plot(list(range(1, len(rewards) + 1)), list(rewards), marker="braille")
    plotext.title("reward per step")
    plotext.plotsize(min(console.width, 90), 14)
    console.print(plotext.uncolorize(plotext.build()), highlight=False, markup=False)


def save_curve(steps: Sequence[Mapping[str, float]], path: pathlib.Path) -> None:
    """Reward, its parts and held-out accuracy over steps, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    names = ["reward", *(n for n in steps[-1] if n.startswith("rewards/"))]
    for name in [*names, "eval/accuracy"]:
        points = [(line["step"], line[name]) for line in steps if name in line]
        if points:
            marker = "o" if name.startswith("eval/") else ""
            width = 2.0 if name == "reward" else 1.0
            axes.plot(*zip(*points, strict=True), label=name, linewidth=width, marker=marker)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
