"""A stored step under another objective: advantages, losses and pushes, side by side.

Both objectives see the same answers, rewards and log-probs, those of the step's last pass. Groups
that training did not compute have the log-probs that were stored with them. What a different
objective would have sampled or done at later steps is another run; this is the same moment, seen
with other eyes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from groupwise.config import Config
from groupwise.errors import ConfigError
from groupwise.explain.groups import GroupView, as_number, group_views, pick, visible
from groupwise.explain.numbers import Moment
from groupwise.explain.step import Step, stored_logprobs
from groupwise.objective.advantages import advantages
from groupwise.recipe import parse
from groupwise.tracking.console import printable
from groupwise.training.step import keep_threshold

SHOWN_TOKENS = 40


@dataclass(frozen=True)
class Replay:
    """The step as it was, and under the other settings."""

    was: Step
    now: Step
    changes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        return {
            "step": self.was.number,
            "set": list(self.changes),
            "was": _side(self.was),
            "now": _side(self.now),
        }


def replay_step(step: Step, settings: Iterable[str]) -> Replay:
    changes = tuple(settings)
    config = _changed(step.config, changes)
    weights = {reward.name: reward.weight for reward in config.rewards}
    if config.rollout.overlong_buffer:
        weights["overlong"] = 1.0
    whole = [_completed(moment) for moment in step.last_pass]
    groups = [group for moment in whole for group in moment.groups]
    _check_inputs(whole, config, weights)
    threshold = keep_threshold(groups, config.algorithm)
    scored = iter(advantages(groups, config.algorithm, weights))
    moments = [
        replace(
            moment,
            groups=[next(scored) for _ in moment.groups],
            keep_above=threshold,
            entropy_weight=config.algorithm.entropy_weight,
            loss=None,
            grad_norm=None,
        )
        for moment in whole
    ]
    was = replace(step, moments=whole, config=_one_pass(step.config))
    now = replace(step, moments=moments, config=_one_pass(config), logged={})
    return Replay(was, now, changes)


def _changed(config: Config, changes: Sequence[str]) -> Config:
    """The run's config with another objective; nothing else about a stored step can change."""
    wrong = [c for c in changes if c.partition("=")[0].split(".")[0] != "algorithm"]
    if wrong or not changes:
        raise ConfigError(
            f"replay changes the objective alone, not {wrong[0]!r}"
            if wrong
            else "say what to change, e.g. --set algorithm=dapo"
        )
    return parse(config.model_dump(mode="json"), changes)


def _one_pass(config: Config) -> Config:
    """`last_pass` of a step that holds its last pass alone is all of it."""
    return config.model_copy(update={"batch": config.batch.model_copy(update={"epochs": 1})})


def _completed(moment: Moment) -> Moment:
    """The moment with log-probs for every group, stored ones where training computed none."""
    return replace(moment, scored={**stored_logprobs(moment.groups), **moment.scored})


def _entropies(moment: Moment) -> Iterable[float]:
    return (entropy for _, entropies in moment.scored.values() for entropy in entropies)


def _check_inputs(moments: Sequence[Moment], config: Config, weights: dict[str, float]) -> None:
    """What the other objective needs must have been stored with the answers."""
    objective = config.algorithm
    groups = [group for moment in moments for group in moment.groups]
    completions = [c for group in groups for c in group.completions]
    if objective.needs_reference and any(c.ref_logprobs is None for c in completions):
        raise ConfigError(
            "this objective needs the reference's log-probs, and the run had no KL, so none were "
            "stored: add --set algorithm.kl_weight=0"
        )
    if objective.top_entropy < 1 and any(c.old_entropies is None for c in completions):
        raise ConfigError(
            "top_entropy needs entropies that this run did not store: add "
            "--set algorithm.top_entropy=1"
        )
    in_reward = objective.needs_reference and objective.kl_in == "reward"
    if in_reward and any(c.old_logprobs is None for c in completions):
        raise ConfigError("kl_in=reward needs old log-probs that this run did not store")
    if objective.uses_entropy and any(math.isnan(e) for m in moments for e in _entropies(m)):
        raise ConfigError(
            "an entropy bonus needs entropies that were not computed here: leave out --stored, or "
            "add --set algorithm.entropy_weight=0"
        )
    if objective.per_reward and set(groups[0].scores) - set(weights):
        unknown = ", ".join(set(groups[0].scores) - set(weights))
        raise ConfigError(f"per_reward needs weights, and the recipe names none for {unknown}")


def print_replay(replay: Replay, console: Console, group: int | None = None) -> None:
    before, after = group_views(replay.was), group_views(replay.now)
    chosen = pick(before, group)
    view, other = chosen, after[chosen.number - 1]
    preset = replay.was.config.algorithm.preset
    console.rule(f"step {replay.was.number} of {printable(replay.was.name)}")
    console.print(f"[dim]{printable(replay.was.source)}[/]", highlight=False)
    console.print(f"[bold]{preset}[/] against [bold]{printable(', '.join(replay.changes))}[/]")
    console.print(_summary(replay, before, after), highlight=False)
    console.print(f"\n[bold]Group {view.number}[/]: {printable(view.prompt[:400])}")
    console.print(_answers(view, other), highlight=False)
    _print_tokens(view, other, replay.was, console)


def _summary(replay: Replay, before: list[GroupView], after: list[GroupView]) -> Table:
    table = Table(box=SIMPLE)
    for name in ("", "was", "now"):
        table.add_column(name, justify="left" if not name else "right")
    rows = [
        ("loss", f"{replay.was.loss:+.6f}", f"{replay.now.loss:+.6f}"),
        *(
            (label, f"{measure(before):.6g}", f"{measure(after):.6g}")
            for label, measure in _MEASURES.items()
        ),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _pushes(views: list[GroupView]) -> list[float]:
    return [
        token.push
        for view in views
        for (group, _), tokens in view.numbers.answers.items()
        if group == view.index
        for token in tokens
    ]


def _clipped(views: list[GroupView]) -> float:
    numbers = list({id(view.numbers): view.numbers for view in views}.values())
    return sum(n.clipped for n in numbers) / len(numbers)


def _largest_advantage(views: list[GroupView]) -> float:
    return max(abs(as_number(a)) for view in views for a in view.group.advantages)


_MEASURES = {
    "largest |advantage|": _largest_advantage,
    "sum of |push|": lambda views: sum(abs(push) for push in _pushes(views)),
    "largest |push|": lambda views: max((abs(push) for push in _pushes(views)), default=0.0),
    "share of tokens clipped": _clipped,
}


def _answers(view: GroupView, other: GroupView) -> Table:
    table = Table(box=SIMPLE)
    names = ("#", "tokens", "reward", "advantage was", "now", "push per token was", "now", "×")
    for name in names:
        table.add_column(name, justify="right")
    for index, completion in enumerate(view.group.completions):
        was, now = (
            sum(t.push for t in v.numbers.answers[v.index, index]) / max(len(completion.tokens), 1)
            for v in (view, other)
        )
        reward = view.group.rewards[index]
        table.add_row(
            str(index + 1),
            str(len(completion.tokens)),
            "–" if reward is None else f"{reward:.3f}",
            *(f"{as_number(v.group.advantages[index]):+.4f}" for v in (view, other)),
            f"{was:+.3e}",
            f"{now:+.3e}",
            f"{now / was:.3f}" if was else "–",
        )
    return table


def _print_tokens(view: GroupView, other: GroupView, step: Step, console: Console) -> None:
    """The answer whose pushes change most, token by token."""
    pairs = {
        index: list(
            zip(
                completion.tokens,
                view.numbers.answers[view.index, index],
                other.numbers.answers[other.index, index],
                strict=True,
            )
        )
        for index, completion in enumerate(view.group.completions)
    }
    chosen = max(pairs, key=lambda i: sum(abs(b.push - a.push) for _, a, b in pairs[i]))
    table = Table(title=f"answer {chosen + 1}, token by token", title_justify="left", box=SIMPLE)
    table.add_column("token")
    for name in ("log-prob", "ratio", "push was", "push now", "change"):
        table.add_column(name, justify="right")
    for token, was, now in pairs[chosen][:SHOWN_TOKENS]:
        change = now.push - was.push
        colour = "green" if change < 0 else "red" if change > 0 else "dim"
        table.add_row(
            Text(visible(step.decode(token))),
            f"{was.logprob:.4f}",
            f"{was.ratio:.4f}",
            f"{was.push:+.3e}",
            f"{now.push:+.3e}" + (" clipped" if now.clipped else ""),
            Text(f"{change:+.3e}", style=colour),
        )
    console.print(table, highlight=False)


def _side(step: Step) -> dict[str, Any]:
    return {
        "algorithm": step.config.algorithm.model_dump(mode="json"),
        "loss": step.loss,
        "groups": [
            {
                "problem": view.group.problem.id,
                "rewards": list(view.group.rewards),
                "advantages": list(view.group.advantages),
                "loss": view.loss,
                "answers": [
                    {
                        "tokens": list(completion.tokens),
                        "numbers": [asdict(t) for t in view.numbers.answers[view.index, index]],
                    }
                    for index, completion in enumerate(view.group.completions)
                ],
            }
            for view in group_views(step)
        ],
    }
