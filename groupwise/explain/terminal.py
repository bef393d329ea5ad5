"""A step in the terminal, with colours: green is made likelier, red less likely."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from groupwise.explain.groups import (
    GroupView,
    advantage_formula,
    group_views,
    pick,
    sums,
    token_runs,
)
from groupwise.explain.numbers import TokenNumbers
from groupwise.explain.step import Decode, ExplainedStep
from groupwise.objective.aggregate import AGGREGATE_FORMULAS
from groupwise.report.conversation import answer_text, conversation, ending
from groupwise.report.html import number
from groupwise.tracking.console import printable, right_table, visible

SHOWN_TOKENS = 60
SHOWN_CHARACTERS = 400
MOST_GROUPS = 100
ZERO = 1e-6
"""A loss below it is 0 but for rounding."""


def print_step(step: ExplainedStep, console: Console, group: int | None = None) -> None:
    views = group_views(step)
    view = pick(views, group)
    objective = step.config.algorithm
    console.rule(f"step {step.number} of {printable(step.name)}: {objective.preset}")
    console.print(f"[dim]{printable(step.source)}[/]", highlight=False)
    _heading(console, f"1. A problem (group {view.number} of {len(views)})")
    console.print(Panel(printable(view.prompt), style="cyan"), highlight=False)
    _heading(console, f"2. {len(view.answers)} answers, scored")
    console.print(_texts(view), highlight=False)
    console.print(_scores(view), highlight=False)
    _heading(console, "3. Advantages: better or worse than the group")
    console.print(
        f"mean {view.mean:.4f}, std {view.deviation:.4f};  "
        f"advantage = {advantage_formula(step.config)}",
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
        console.print(f"{label:<34} {number(value, '+.9g')}", highlight=False)
    if step.taken and abs(step.loss) < ZERO:
        console.print(
            "[dim]The loss is zero by design: a group's advantages add up to 0, and before the "
            "first update every ratio is 1. Its gradient is not zero, and that is what "
            "learns.[/]",
            highlight=False,
        )


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{text}[/]", highlight=False)


def _texts(view: GroupView) -> Table:
    """Above their numbers: beside them 80 columns would leave an answer ten."""
    table = Table.grid(padding=(0, 2))
    for index, completion in enumerate(view.group.completions):
        text = printable(answer_text(completion)[:SHOWN_CHARACTERS])
        table.add_row(f"[dim]{view.label(index)}[/]", text)
    return table


def _scores(view: GroupView) -> Table:
    names = ("tokens", *map(printable, view.group.scores), "reward", "advantage", "loss share")
    table = right_table(["#", *names])
    for index, completion in enumerate(view.group.completions):
        scores = [values[index] for values in view.group.scores.values()]
        advantage = view.advantage(index)
        table.add_row(
            view.label(index),
            f"{completion.length} {completion.stop}",
            *(number(score, ".3g") for score in scores),
            number(view.group.rewards[index], ".3f"),
            Text(f"{advantage:+.4f}", style=_colour(-advantage)),
            f"{view.share(index):+.6f}",
        )
    return table


def _print_tokens(view: GroupView, decode: Decode, console: Console) -> None:
    if not view.computed:
        console.print(
            "no answer beat another, so every advantage is 0 and the group is not computed",
            highlight=False,
        )
        return
    order = sorted(view.answers, key=view.advantage)
    for title, index in (("best answer", order[-1]), ("worst answer", order[0])):
        title = f"{title}, number {view.label(index)}"
        if turns := _turns(view, index, title):
            console.print(turns, highlight=False)
            how = ending(view.group.completions[index])
            console.print(f"[dim]{printable(how)}[/]", highlight=False)
        names = ("token", "log-prob", "ratio", "KL", "entropy", "loss share", "push")
        table = right_table(names, f"{title}, token by token" if turns else title)
        rows = [row for line in view.segments(index) for row in _token_rows(view, line, decode)]
        for row in rows[:SHOWN_TOKENS]:
            table.add_row(*row)
        console.print(table, highlight=False)
        if len(rows) > SHOWN_TOKENS:
            console.print(f"[dim]… {len(rows) - SHOWN_TOKENS} more tokens[/]", highlight=False)


def _turns(view: GroupView, answer: int, title: str) -> Table | None:
    """An episode as a conversation, with what each turn of the model earned."""
    episode, turns = view.group.completions[answer].episode, view.turns(answer)
    if episode is None:
        return None
    table = right_table(["", "said", "tokens", "reward", "advantage", "loss share"], title)
    table.columns[1].max_width, table.columns[1].justify = 60, "left"
    for said in conversation(episode):
        cells: list[str] = []
        if said.turn is not None and said.turn < len(turns):
            own = turns[said.turn]
            cells = [str(own.tokens), number(own.reward, ".3g"), f"{own.advantage:+.4f}"]
            cells.append(f"{own.loss:+.6f}")
        table.add_row(printable(said.role), printable(said.text[:SHOWN_CHARACTERS]), *cells)
    return table


def _token_rows(view: GroupView, line: int, decode: Decode) -> Iterator[list[str | Text]]:
    """What an environment wrote is one row: the policy did not sample it."""
    completion, tokens = view.group.completions[line], view.tokens(line)
    for own, run in token_runs(completion):
        text = "".join(decode(completion.tokens[n]) for n in run)
        shown = Text(visible(text, keep="")[:SHOWN_CHARACTERS], style="" if own else "dim")
        not_sampled = ("", "", "", "", f"{len(run)} not sampled", "")
        yield [shown, *(_token_cells(tokens[run[0]]) if own else not_sampled)]


def _token_cells(token: TokenNumbers) -> Sequence[str | Text]:
    if not token.counts:
        return (f"{token.logprob:.4f}", "", "", "", "not counted", "0")
    ratio = f"{token.ratio:.4f}"
    return (
        f"{token.logprob:.4f}",
        Text(f"clipped {ratio}", style="yellow") if token.clipped else ratio,
        number(token.kl, ".5f"),
        number(token.entropy, ".3f"),
        f"{token.loss:+.3e}",
        Text(f"{token.push:+.3e}", style=_colour(token.push)),
    )


def _groups(views: Sequence[GroupView]) -> Table:
    table = right_table(["group", "mean reward", "std", "loss share", ""])
    for view in views[:MOST_GROUPS]:
        note = "" if view.computed else "no spread: adds exactly 0"
        table.add_row(
            str(view.number), f"{view.mean:.4f}", f"{view.deviation:.4f}", f"{view.loss:+.3e}", note
        )
    if len(views) > MOST_GROUPS:
        table.caption = f"and {len(views) - MOST_GROUPS:,} more groups: --html has them all"
    return table


def _colour(push: float) -> str:
    return "green" if push < 0 else "red" if push > 0 else "dim"
