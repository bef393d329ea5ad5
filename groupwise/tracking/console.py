"""What a person sees while a run goes on: a live panel on a terminal or notebook, else lines."""

import importlib.util
import time
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

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
    ("eval/accuracy", "held-out", "{:.1%}"),
)


class LiveConsole:
    """A Tracker that draws. On a pipe or in a log file it prints a line every few seconds."""

    def __init__(self, total: int, done: int) -> None:
        self.rewards: list[float] = []
        self.latest: dict[str, float] = {}
        self.printed = 0.0
        self.total = total
        self.progress = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=console,
        )
        self.bar = self.progress.add_task("train", total=total, completed=done)
        self.live = Live(self._panel(), console=console, refresh_per_second=4)
        if can_redraw(console):
            self.live.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.rewards.append(metrics["reward"])
        self.latest.update(metrics)
        self.progress.update(self.bar, completed=step)
        if self.live.is_started:
            self.live.update(self._panel())
        elif time.monotonic() - self.printed > 5 or step == self.total or step == 1:
            self.printed = time.monotonic()
            console.print(f"step {step}/{self.total}  {self._line()}", highlight=False)

    def close(self) -> None:
        if self.live.is_started:
            self.live.stop()

    def _panel(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for _ in range(3):
            table.add_column(justify="left")
        cells = [
            f"[dim]{label}[/] {form.format(self.latest[key])}" for key, label, form in self._now()
        ]
        for start in range(0, len(cells), 3):
            table.add_row(*cells[start : start + 3])
        spark = Text.assemble(("reward ", "dim"), (sparkline(self.rewards, 60), "green"))
        return Group(self.progress, table, spark)

    def _line(self) -> str:
        return "  ".join(
            f"{label} {form.format(self.latest[key])}" for key, label, form in self._now()
        )

    def _now(self) -> list[tuple[str, str, str]]:
        return [row for row in _SHOWN if row[0] in self.latest]


def can_redraw(shown_on: Console) -> bool:
    """A terminal can, and a notebook that has widgets; a pipe or a log file cannot."""
    widgets = importlib.util.find_spec("ipywidgets") is not None
    return shown_on.is_terminal or (shown_on.is_jupyter and widgets)


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


def printable(text: str) -> str:
    """Model output is hostile: control characters are shown as escapes, rich markup as text."""
    shown = "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )
    return escape(shown)
