"""What a person sees while a run goes on: a live panel on a terminal or notebook, else lines."""

import time
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from groupwise.tracking.activity import leave, listen
from groupwise.tracking.notebook import NotebookPanel
from groupwise.types import Problem

console = Console(stderr=False)

_BARS = "▁▂▃▄▅▆▇█"
_SHOWN = (
    ("reward", "reward", "{:.3f}"),
    ("accuracy", "accuracy", "{:.1%}"),
    ("tokens", "tokens/answer", "{:.0f}"),
    ("tokens_per_second", "tokens/s", "{:,.0f}"),
    ("no_spread", "no spread", "{:.0%}"),
    ("entropy", "entropy", "{:.2f}"),
    ("kl", "KL", "{:.4f}"),
    ("grad_norm", "grad norm", "{:.2f}"),
    ("eval/accuracy", "validation", "{:.1%}"),
)


LINE = 80
"""Columns that a line in a log file has."""
SILENT_SECONDS = 15.0
"""Without a line in a log file, before one says what a slow step is doing."""


class LiveConsole:
    """A Tracker that draws. On a pipe or in a log file it prints a line every few seconds."""

    def __init__(self, total: int, done: int) -> None:
        self.rewards: list[float] = []
        self.latest: dict[str, float] = {}
        self.printed = time.monotonic()
        self.total = total
        self.step = done
        self.steps_seen = 0
        self.began = time.monotonic()
        self.progress = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=16),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("[dim]{task.fields[doing]}[/]"),
            console=console,
        )
        self.bar = self.progress.add_task("train", total=total, completed=done, left="", doing="")
        self.live = (
            NotebookPanel(self._panel())
            if console.is_jupyter
            else Live(self._panel(), console=console, refresh_per_second=4)
        )
        if console.is_jupyter or console.is_terminal:
            self.live.start()
        listen(self.show)

    def show(self, doing: str) -> None:
        """What the next step is doing; in a log file, where nothing was to be seen for a while."""
        self.progress.update(self.bar, doing=doing)
        if isinstance(self.live, NotebookPanel):  # rich's own draws by a clock
            self.live.update(self._panel())
        elif not self.live.is_started and time.monotonic() - self.printed > SILENT_SECONDS:
            self.printed = time.monotonic()
            left = self.time_left()
            line = f"step {self.step + 1}/{self.total}  {doing}" + (f"  {left} left" * bool(left))
            console.print(line, highlight=False)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rewards.append(metrics["reward"])
        self.latest.update(metrics)
        self.step, self.steps_seen = step, self.steps_seen + 1
        left = self.time_left()
        self.progress.update(self.bar, completed=step, left=f"about {left} left" if left else "")
        if self.live.is_started:
            self.live.update(self._panel())
        elif time.monotonic() - self.printed > 5 or step == self.total or step == 1:
            self.printed = time.monotonic()
            line = f"step {step}/{self.total}  {self._line()}"
            console.print(_cut_to_width(line, LINE), highlight=False)

    def close(self) -> None:
        leave(self.show)
        self.progress.update(self.bar, doing="")
        if self.live.is_started:
            self.live.stop()

    def _panel(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for _ in range(3):
            table.add_column(justify="left")
        cells = [
            f"[dim]{label}[/] {form.format(self.latest[key])}" for key, label, form in self._now()
        ]
        for start in range(0, len(cells), 3):
            table.add_row(*cells[start : start + 3])
        spark = Text.assemble(("reward ", "dim"), (sparkline(self.rewards, 60), "green"))
        panel = Table.grid()
        for part in (self.progress, table, spark):
            panel.add_row(part)
        return panel

    def _line(self) -> str:
        """The newest numbers, most telling first, and how long the rest will take."""
        parts = [f"{label} {form.format(self.latest[key])}" for key, label, form in self._now()]
        left = self.time_left()
        return "  ".join([*parts[:2], *([f"{left} left"] if left else []), *parts[2:]])

    def time_left(self) -> str:
        """From the mean time of the steps so far, evaluations included."""
        if not self.steps_seen or self.step >= self.total:
            return ""
        seconds = (time.monotonic() - self.began) / self.steps_seen * (self.total - self.step)
        return duration(seconds)

    def _now(self) -> list[tuple[str, str, str]]:
        return [row for row in _SHOWN if row[0] in self.latest]


def duration(seconds: float) -> str:
    """45 s, 12 min, 3 h 20 min"""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _cut_to_width(line: str, width: int) -> str:
    """Whole entries only, as many as fit."""
    while len(line) > width and "  " in line:
        line = line.rpartition("  ")[0]
    return line


def sparkline(values: list[float], width: int) -> str:
    """A line of bars, newest right; long histories are averaged into `width` bars."""
    if not values:
        return ""
    size = max(1, -(-len(values) // width))
    means = [
        sum(part) / len(part)
        for part in (values[i : i + size] for i in range(0, len(values), size))
    ]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)


def right_table(columns: Sequence[str], title: str | None = None) -> Table:
    """A plain table of numbers: set right, but for the first column."""
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    return table


def printable(text: str) -> str:
    """Model output is hostile: control characters are shown as escapes, rich markup as text."""
    return escape(visible(text))


def visible(text: str, keep: str = "\n") -> str:
    """Control characters as escapes, but for those in `keep`."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def prompt_text(problem: Problem) -> str:
    """A conversation as one text, each turn behind its role."""
    if isinstance(problem.prompt, str):
        return problem.prompt
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in problem.prompt)
