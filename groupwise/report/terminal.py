"""The end of a run in the terminal: before against after, what stands out, the reward curve."""

import pathlib
from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from groupwise.diagnose import Finding
from groupwise.report.curves import drawn, series
from groupwise.tracking.console import console
from groupwise.tracking.findings import in_words

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
    table = Table("", title=escape(title))
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right")
    for row in before_after_rows(before, after):
        table.add_row(*map(escape, row))
    return table


def before_after_rows(
    before: Mapping[str, float], after: Mapping[str, float]
) -> list[tuple[str, str, str, str]]:
    """What both evaluations measured: (what, before, after, change)."""
    rows = dict(_ROWS)
    for key in after:
        if "@" in key:
            rows[key] = (key, "{:.1%}")
        elif key.startswith("rewards/"):
            rows[key] = (key.replace("rewards/", "reward: "), "{:.3f}")
    table = []
    for key, (label, form) in rows.items():
        if key in after and key in before:
            change = _change(after[key] - before[key], form)
            table.append((label, form.format(before[key]), form.format(after[key]), change))
    return table


def _change(by: float, form: str) -> str:
    """A difference of two shares is in points: from 27 % to 95 % is no change by 68 percent."""
    return f"{100 * by:+.1f} points" if form.endswith("%}") else form.replace(":", ":+").format(by)


def save_before_after(
    before: Mapping[str, float], after: Mapping[str, float], path: pathlib.Path
) -> None:
    """The table in Markdown, to paste."""
    head = f"| {after['problems']:.0f} test problems | before | after | change |"
    rows = [f"| {' | '.join(row)} |" for row in before_after_rows(before, after)]
    path.write_text("\n".join([head, "|---|---:|---:|---:|", *rows]) + "\n", encoding="utf-8")


def metrics_table(metrics: Mapping[str, float], title: str) -> Table:
    table = Table(title=escape(title), show_header=False)
    for key, value in metrics.items():
        label, form = _ROWS.get(key, (key, "{:.1%}" if "@" in key else "{:.4g}"))
        table.add_row(escape(label), form.format(value))
    return table


def print_findings(findings: Sequence[Finding]) -> None:
    colours = {"error": "red", "warning": "yellow", "info": "cyan"}
    for finding in findings:
        console.print(
            in_words(finding), style=colours[finding.severity], markup=False, highlight=False
        )


def print_curve(rewards: Sequence[float]) -> None:
    """The reward curve as text, as wide as the terminal allows."""
    import plotext

    plotext.clear_figure()
    plotext.plot(list(range(1, len(rewards) + 1)), list(rewards), marker="braille")
    plotext.title("reward per step")
    plotext.plotsize(min(console.width, 90), 14)
    console.print(plotext.uncolorize(plotext.build()), highlight=False, markup=False)


def save_curve(
    steps: Sequence[Mapping[str, float]],
    path: pathlib.Path,
    before: Mapping[str, float] | None = None,
) -> None:
    """Reward, its parts and validation accuracy over steps, as a PNG."""
    curves = series(steps, ("reward", "rewards/*", "eval/accuracy"), before)
    path.write_bytes(drawn({"by step": curves}, "png"))
