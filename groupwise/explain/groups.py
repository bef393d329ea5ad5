"""A step's groups as a reader meets them: which one to show, and their numbers in words."""

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from groupwise.config import Config
from groupwise.errors import ConfigError
from groupwise.explain.numbers import StepNumbers, TokenNumbers
from groupwise.explain.step import ExplainedStep
from groupwise.tracking.console import prompt_text
from groupwise.training.recorder import Update
from groupwise.types import Completion, Group


@dataclass(frozen=True)
class TurnNumbers:
    """One turn of the model in an episode: what it earned, and what its tokens add to the loss."""

    tokens: int
    reward: float | None
    advantage: float
    loss: float


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
        return sum(self.share(answer) for answer in range(len(self.group.completions)))

    @property
    def answers(self) -> list[int]:
        """Where each answer begins: an episode that was split goes on in the lines behind it."""
        return [n for n, c in enumerate(self.group.completions) if c.segment == 0]

    def segments(self, answer: int) -> list[int]:
        """The lines of the answer that begins at this one."""
        following = self.group.completions[answer + 1 :]
        more = sum(1 for _ in itertools.takewhile(lambda c: c.segment, following))
        return list(range(answer, answer + 1 + more))

    def label(self, line: int) -> str:
        """The answer's number from 1; 3.2 is the second segment of the third."""
        segment = self.group.completions[line].segment
        number = sum(start <= line for start in self.answers)
        return f"{number}.{segment + 1}" if segment else str(number)

    def advantage(self, answer: int) -> float:
        """The mean of those of its sampled tokens, where they differ."""
        known = self._advantages(answer)
        return statistics.fmean(known) if known else 0.0

    def turns(self, answer: int) -> list[TurnNumbers]:
        """Of an episode; none of any other answer."""
        episode = self.group.completions[answer].episode
        if episode is None:
            return []
        lines = self.segments(answer)
        advantages = iter([value for line in lines for value in self._advantages(line)])
        losses = iter([token.loss for line in lines for token in self._sampled(line)])
        return [
            TurnNumbers(
                tokens,
                episode.rewards[number] if number < len(episode.rewards) else None,
                statistics.fmean(itertools.islice(advantages, tokens)) if tokens else 0.0,
                sum(itertools.islice(losses, tokens)),
            )
            for number, tokens in enumerate(episode.turns)
        ]

    def _advantages(self, line: int) -> list[float]:
        """Of each token that the policy sampled."""
        completion = self.group.completions[line]
        value = self.group.advantages[line] if self.group.advantages else 0.0
        if not isinstance(value, tuple):
            return [value] * completion.length
        return [a for a, own in zip(value, sampled(completion), strict=True) if own]

    def _sampled(self, line: int) -> list[TokenNumbers]:
        owns = sampled(self.group.completions[line])
        return [token for token, own in zip(self.tokens(line), owns, strict=False) if own]

    def share(self, answer: int) -> float:
        """What the answer adds to the loss."""
        return self.numbers.share((self.index, answer))

    def tokens(self, answer: int) -> list[TokenNumbers]:
        """None where the group was not computed."""
        return self.numbers.answers.get((self.index, answer), [])

    @property
    def prompt(self) -> str:
        return prompt_text(self.group.problem)


def group_views(step: ExplainedStep) -> list[GroupView]:
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


def sampled(completion: Completion) -> tuple[bool, ...]:
    """Which of its tokens the policy drew."""
    return completion.sampled or (True,) * len(completion.tokens)


def token_runs(completion: Completion) -> Iterator[tuple[bool, range]]:
    """Which tokens to show together: each that was sampled alone, the others in runs."""
    start = 0
    for own, run in itertools.groupby(sampled(completion)):
        end = start + len(list(run))
        yield from (
            ((True, range(n, n + 1)) for n in range(start, end))
            if own
            else [(False, range(start, end))]
        )
        start = end


def advantage_formula(config: Config) -> str:
    """How rewards became advantages."""
    penalty = ", KL taken off the reward first" if config.algorithm.kl_in_reward else ""
    by_turn = ", less what was earned before the turn" if config.environment.turn_weight else ""
    return config.algorithm.advantage.formula() + penalty + by_turn


def sums(step: ExplainedStep, views: list[GroupView]) -> Iterator[tuple[str, float | None]]:
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
