"""A step's groups as a reader meets them: which one to show, and their numbers in words."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from groupwise.errors import ConfigError
from groupwise.explain.numbers import StepNumbers
from groupwise.explain.step import Step
from groupwise.objective.objective import Objective
from groupwise.training.update import Update
from groupwise.types import Advantage, Group


@dataclass(frozen=True)
class GroupView:
    """One group at its last update. `number` counts the step's groups from 1."""

    number: int
    group: Group
    update: Update
    numbers: StepNumbers
    index: int

    @property
    def rewards(self) -> list[float]:
        return [reward for reward in self.group.rewards if reward is not None]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rewards) if self.rewards else 0.0

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.rewards) if len(self.rewards) > 1 else 0.0

    @property
    def computed(self) -> bool:
        return self.index in self.update.computed

    @property
    def loss(self) -> float:
        answers = range(len(self.group.completions))
        return sum(self.numbers.share((self.index, answer)) for answer in answers)

    @property
    def prompt(self) -> str:
        prompt = self.group.problem.prompt
        if isinstance(prompt, str):
            return prompt
        return "\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt)


def group_views(step: Step) -> list[GroupView]:
    views: list[GroupView] = []
    for update in step.last_pass:
        numbers = step.numbers(update)
        for index, group in enumerate(update.batch.groups):
            views.append(GroupView(len(views) + 1, group, update, numbers, index))
    return views


def pick(views: list[GroupView], number: int | None) -> GroupView:
    """The group asked for; else the one whose answers differ most in reward."""
    if number is None:
        return max(views, key=lambda view: view.deviation)
    if not 1 <= number <= len(views):
        raise ConfigError(f"there is no group {number}: the step has groups 1 to {len(views)}")
    return views[number - 1]


def as_number(advantage: Advantage) -> float:
    """An answer's advantage; the mean of its tokens' where they differ."""
    if isinstance(advantage, tuple):
        return statistics.fmean(advantage) if advantage else 0.0
    return advantage


def advantage_formula(objective: Objective) -> str:
    """How rewards became advantages."""
    penalty = ", KL taken off the reward first" if objective.kl_in_reward else ""
    return objective.advantage.formula() + penalty


def sums(step: Step, views: list[GroupView]) -> Iterator[tuple[str, float | None]]:
    """What the groups of the last pass add up to, and what training logged."""
    updates = step.taken
    if len(updates) <= 1:
        yield "sum of all tokens' shares", sum(view.loss for view in views)
        if updates and (bonus := step.numbers(updates[0]).entropy_bonus):
            yield "entropy bonus, taken off", bonus
        yield "loss", step.loss
    else:
        for index, update in enumerate(updates, start=1):
            yield f"loss of update {index} of {len(updates)}", step.numbers(update).loss
        yield "their mean, the step's loss", step.loss
    yield "loss that training logged", step.logged.get("loss")
    yield "gradient norm, before clipping", step.logged.get("grad_norm")
    yield "learning rate", step.logged.get("lr")


def visible(text: str) -> str:
    """A token's text on one line, its control characters as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
