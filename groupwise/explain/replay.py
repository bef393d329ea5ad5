"""A stored step under another objective: advantages, losses and pushes, side by side.

Both objectives see the same answers, rewards and log-probs, those of the step's last pass. Groups
that training did not compute have the log-probs that were stored with them. What a different
objective would have sampled or done at later steps is another run; this is the same moment, seen
with other eyes.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from groupwise.config import Config
from groupwise.errors import ConfigError
from groupwise.explain.groups import GroupView, group_views, pick, sampled, token_runs
from groupwise.explain.step import ExplainedStep, stored_logprobs
from groupwise.objective.assign import assign_advantages
from groupwise.recipe import parse
from groupwise.report.html import number
from groupwise.tracking.console import printable, right_table, visible
from groupwise.training.recorder import Update
from groupwise.training.update import rollout_batch
from groupwise.types import Group

SHOWN_TOKENS = 40


@dataclass(frozen=True)
class Replay:
    """The step as it was, and under the other settings."""

    was: ExplainedStep
    now: ExplainedStep
    changes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        return {
            "step": self.was.number,
            "set": list(self.changes),
            "was": _side(self.was),
            "now": _side(self.now),
        }


def replay_step(step: ExplainedStep, settings: Iterable[str]) -> Replay:
    changes = tuple(settings)
    config = _changed(step.config, changes)
    config = config.model_copy(update={"algorithm": config.algorithm.loaded()})
    whole = [_completed(update) for update in step.last_pass]
    groups = [group for update in whole for group in update.batch.groups]
    weights = _weights(config, groups)
    _check_inputs(whole, config, weights)
    turn_weight = config.environment.turn_weight
    batch = assign_advantages(rollout_batch(groups, config), config.algorithm, weights, turn_weight)
    updates = [
        replace(
            update,
            batch=minibatch,
            entropy_weight=config.algorithm.entropy_weight,
            loss=None,
            grad_norm=None,
        )
        for update, minibatch in zip(whole, batch.minibatches(len(whole)), strict=True)
    ]
    was = replace(step, updates=whole, config=_one_pass(step.config))
    now = replace(step, updates=updates, config=_one_pass(config), logged={})
    return Replay(was, now, changes)


def _weights(config: Config, groups: Sequence[Group]) -> dict[str, float]:
    """By reward. The environment's own is the one that episodes were stored with."""
    weights = {reward.name: reward.weight for reward in config.rewards}
    if config.rollout.overlong_buffer:
        weights["overlong"] = 1.0
    answers = [(group, index, c) for group in groups for index, c in enumerate(group.completions)]
    if not any(completion.episode for _, _, completion in answers):
        return weights
    for name in set(groups[0].scores) - set(weights):
        own = (c.episode.reward if c.episode else None for _, _, c in answers)
        if [group.scores[name][index] for group, index, _ in answers] == list(own):
            weights[name] = config.environment.reward_weight
    return weights


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


def _completed(update: Update) -> Update:
    """The update with log-probs for every group, stored ones where training computed none."""
    logprobs_BT, entropies_BT = stored_logprobs(update.batch)
    unknown_BT = update.logprobs_BT.isnan()
    return replace(
        update,
        logprobs_BT=torch.where(unknown_BT, logprobs_BT, update.logprobs_BT),
        entropies_BT=torch.where(unknown_BT, entropies_BT, update.entropies_BT),
    )


def _check_inputs(updates: Sequence[Update], config: Config, weights: dict[str, float]) -> None:
    """What the other objective needs must have been stored with the answers."""
    objective = config.algorithm
    groups = [group for update in updates for group in update.batch.groups]
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
    if objective.kl_in_reward and any(c.old_logprobs is None for c in completions):
        raise ConfigError("kl_in=reward needs old log-probs that this run did not store")
    unknown = [update.entropies_BT[update.batch.mask_BT].isnan().any() for update in updates]
    if objective.uses_entropy and any(unknown):
        raise ConfigError(
            "an entropy bonus needs entropies that were not computed here: leave out --stored, or "
            "add --set algorithm.entropy_weight=0"
        )
    unnamed = ", ".join(set(groups[0].scores) - set(weights))
    if objective.advantage.uses_weights and unnamed:
        kind = objective.advantage.kind
        raise ConfigError(f"{kind} needs weights, and the recipe names none for {unnamed}")


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
    table = right_table(["", "was", "now"])
    table.add_row("loss", f"{replay.was.loss:+.6f}", f"{replay.now.loss:+.6f}")
    for label, measure in _MEASURES.items():
        table.add_row(label, f"{measure(before):.6g}", f"{measure(after):.6g}")
    return table


def _pushes(views: list[GroupView]) -> list[float]:
    return [
        token.push
        for view in views
        for answer in range(len(view.group.completions))
        for token in view.tokens(answer)
    ]


def _clipped(views: list[GroupView]) -> float:
    numbers = list({id(view.numbers): view.numbers for view in views}.values())
    return sum(n.clipped for n in numbers) / len(numbers)


def _largest_advantage(views: list[GroupView]) -> float:
    return max(abs(v.advantage(a)) for v in views for a in range(len(v.group.completions)))


_MEASURES = {
    "largest |advantage|": _largest_advantage,
    "sum of |push|": lambda views: sum(abs(push) for push in _pushes(views)),
    "largest |push|": lambda views: max((abs(push) for push in _pushes(views)), default=0.0),
    "share of tokens clipped": _clipped,
}


def _answers(view: GroupView, other: GroupView) -> Table:
    names = ("#", "tokens", "reward", "advantage was", "now", "push per token was", "now", "×")
    table = right_table(names)
    for index, completion in enumerate(view.group.completions):
        was, now = (
            sum(token.push for token in v.tokens(index)) / max(completion.length, 1)
            for v in (view, other)
        )
        table.add_row(
            view.label(index),
            str(completion.length),
            number(view.group.rewards[index], ".3f"),
            *(f"{v.advantage(index):+.4f}" for v in (view, other)),
            f"{was:+.3e}",
            f"{now:+.3e}",
            f"{now / was:.3f}" if was else "–",
        )
    return table


def _print_tokens(view: GroupView, other: GroupView, step: ExplainedStep, console: Console) -> None:
    """The answer whose pushes change most, token by token."""
    answers = view.group.completions
    pairs = [
        list(zip(view.tokens(index), other.tokens(index), strict=True))
        for index in range(len(answers))
    ]
    chosen = max(
        range(len(answers)), key=lambda index: sum(abs(b.push - a.push) for a, b in pairs[index])
    )
    names = ("token", "log-prob", "ratio", "push was", "push now", "change")
    table = right_table(names, f"answer {view.label(chosen)}, token by token")
    for own, run in itertools.islice(token_runs(answers[chosen]), SHOWN_TOKENS):
        text = "".join(step.decode(answers[chosen].tokens[n]) for n in run)
        if not own:
            table.add_row(Text(visible(text, keep="")[:400], style="dim"), "not sampled")
            continue
        was, now = pairs[chosen][run[0]]
        change = now.push - was.push
        colour = "green" if change < 0 else "red" if change > 0 else "dim"
        table.add_row(
            Text(visible(text, keep="")),
            f"{was.logprob:.4f}",
            f"{was.ratio:.4f}",
            f"{was.push:+.3e}",
            f"{now.push:+.3e}" + (" clipped" if now.clipped else ""),
            Text(f"{change:+.3e}", style=colour),
        )
    console.print(table, highlight=False)


def _side(step: ExplainedStep) -> dict[str, Any]:
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
                        "sampled": list(sampled(completion)),
                        "segment": completion.segment,
                        "turns": [asdict(turn) for turn in view.turns(index)],
                        "numbers": [asdict(token) for token in view.tokens(index)],
                    }
                    for index, completion in enumerate(view.group.completions)
                ],
            }
            for view in group_views(step)
        ],
    }
