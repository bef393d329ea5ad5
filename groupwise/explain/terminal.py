"""A step in the terminal, with colours: green is made likelier, red less likely."""

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from groupwise.explain.groups import (
    GroupView,
    advantage_formula,
    as_number,
    group_views,
    pick,
    sums,
    visible,
)
from groupwise.explain.numbers import TokenNumbers
from groupwise.explain.step import Decode, Step
from groupwise.objective.aggregate import AGGREGATE_FORMULAS
from groupwise.tracking.console import printable

SHOWN_TOKENS = 60


def print_step(step: Step, console: Console, group: int | None = None) -> None:
    views = group_views(step)
    view = pick(views, group)
    objective = step.config.algorithm
    console.rule(f"step {step.number} of {printable(step.name)}: {objective.preset}")
    console.print(f"[dim]{printable(step.source)}[/]", highlight=False)
    _heading(console, f"1. A problem (group {view.number} of {len(views)})")
    console.print(Panel(printable(view.prompt), style="cyan"), highlight=False)
    _heading(console, f"2. {len(view.group.completions)} answers, scored")
    console.print(_answers(view), highlight=False)
    _heading(console, "3. Advantages: better or worse than the group")
    console.print(
        f"mean {view.mean:.4f}, std {view.deviation:.4f};  "
        f"advantage = {advantage_formula(objective)}",
        highlight=False,
    )
    _heading(console, "4. Tokens: how hard each is pushed")
    console.print(
        f"token loss = {objective.surrogate.formula()}"
        + (f" + {objective.kl_weight:g}·KL" if objective.needs_reference else "")
        + f";  push = dL/dlogp, negative makes a token likelier;\naggregated as "
        f"{AGGREGATE_FORMULAS[objective.aggregate]}",
        highlight=False,
    )
    _print_tokens(view, step.decode, console)
    _heading(console, f"5. All {len(views)} groups add up")
    console.print(_groups(views), highlight=False)
    for label, value in sums(step, views):
        shown = "–" if value is None else f"{value:+.9g}"
        console.print(f"{label:<34} {shown}", highlight=False)


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/]", highlight=False)


def _answers(view: GroupView) -> Table:
    table = Table(box=SIMPLE)
    table.add_column("#", justify="right")
    table.add_column("answer", max_width=60, overflow="fold")
    for name in ("tokens", *view.group.scores, "reward", "advantage", "loss share"):
        table.add_column(printable(name), justify="right")
    for index, completion in enumerate(view.group.completions):
        scores = [values[index] for values in view.group.scores.values()]
        advantage = as_number(view.group.advantages[index]) if view.group.advantages else 0.0
        table.add_row(
            str(index + 1),
            printable(completion.text[:400]),
            f"{len(completion.tokens)} {completion.stop}",
            *("–" if score is None else f"{score:.3g}" for score in scores),
            _plain(view.group.rewards[index], ".3f"),
            Text(f"{advantage:+.4f}", style=_colour(-advantage)),
            f"{view.numbers.share((view.index, index)):+.6f}",
        )
    return table


def _print_tokens(view: GroupView, decode: Decode, console: Console) -> None:
    if not view.computed:
        console.print(
            "no answer beat another, so every advantage is 0 and the group is not computed",
            highlight=False,
        )
        return
    order = sorted(
        range(len(view.group.completions)), key=lambda i: as_number(view.group.advantages[i])
    )
    for title, index in (("best answer", order[-1]), ("worst answer", order[0])):
        tokens = view.numbers.answers[view.index, index]
        ids = view.group.completions[index].tokens
        table = Table(title=f"{title}, number {index + 1}", title_justify="left", box=SIMPLE)
        table.add_column("token")
        for name in ("log-prob", "ratio", "KL", "entropy", "loss share", "push"):
            table.add_column(name, justify="right", no_wrap=True)
        for token, numbers in list(zip(ids, tokens, strict=True))[:SHOWN_TOKENS]:
            table.add_row(Text(visible(decode(token))), *_token_cells(numbers))
        console.print(table, highlight=False)
        if len(tokens) > SHOWN_TOKENS:
            console.print(f"[dim]… {len(tokens) - SHOWN_TOKENS} more tokens[/]", highlight=False)


def _token_cells(token: TokenNumbers) -> Sequence[str | Text]:
    if not token.counts:
        return (f"{token.logprob:.4f}", "", "", "", "not counted", "0")
    ratio = f"{token.ratio:.4f}"
    return (
        f"{token.logprob:.4f}",
        Text(f"clipped {ratio}", style="yellow") if token.clipped else ratio,
        _plain(token.kl, ".5f"),
        _plain(token.entropy, ".3f"),
        f"{token.loss:+.3e}",
        Text(f"{token.push:+.3e}", style=_colour(token.push)),
    )


def _groups(views: Sequence[GroupView]) -> Table:
    table = Table(box=SIMPLE)
    for name in ("group", "mean reward", "std", "loss share"):
        table.add_column(name, justify="right")
    table.add_column("")
    for view in views:
        note = "" if view.computed else "no spread: adds exactly 0"
        table.add_row(
            str(view.number), f"{view.mean:.4f}", f"{view.deviation:.4f}", f"{view.loss:+.3e}", note
        )
    return table


def _plain(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _colour(push: float) -> str:
    return "green" if push < 0 else "red" if push > 0 else "dim"
