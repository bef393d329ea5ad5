"""A step is a gather of groups: what it draws does not depend on which answer ends first."""

import asyncio
import random
import time
from collections.abc import Iterable
from typing import Any

import pytest
from torch import Tensor

from groupwise.config import Config
from groupwise.errors import RewardError
from groupwise.load import Parts, load_parts
from groupwise.policy.load import Policy
from groupwise.rewards.base import Reward
from groupwise.rollout.engine import run_sync
from groupwise.rollout.groups import Rollout
from groupwise.training.clock import Clock
from groupwise.training.collect import collect_step
from groupwise.training.sampler import draw
from groupwise.types import Completion, Group, Request, Sampling
from runs import small_config


class Delayed:
    """Answers after a random time. Some prompts get the same answer from every key: flat groups."""

    def __init__(self, policy: Policy, config: Config) -> None:
        self.pause, self.asked, self.most = 0.01, 0, 0

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        self.asked += 1
        self.most = max(self.most, self.asked)
        await asyncio.sleep(random.random() * self.pause)
        self.asked -= 1
        flat = sum(request.prompt_tokens) % 3 == 0
        keys = request.keys[:1] * len(request.keys) if flat else request.keys
        return tuple(Completion((5 + key % 40,), (-1.0,), "length") for key in keys)

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """It has none."""

    def close(self) -> None:
        """Nothing runs."""


def parts_for(*overrides: str, reward: Any = None) -> Parts:
    def by_token(completions: list[Any], **_: Any) -> list[float]:
        """Not at the top of this file, which a process for rewards would import: seconds."""
        return [float(sum(map(ord, turns[0]["content"])) % 7) for turns in completions]

    config = small_config("batch.prompts=5", *overrides)
    return load_parts(config, engine=Delayed, rewards=[Reward("token", reward or by_token)])


def in_rounds(parts: Parts, step: int, cursor: int) -> Rollout:
    """The same by its definition: draw what is missing, wait for all of it, draw again."""
    config = parts.config
    prompts, budget = config.batch.prompts, int(config.rollout.max_draws * config.batch.prompts)
    useful: list[Group] = []
    flat: list[Group] = []
    drawn = 0
    while len(useful) < prompts and drawn < budget:
        wanted = min(prompts - len(useful), budget - drawn)
        problems = draw(parts.problems["train"], cursor + drawn, wanted, config.seed)
        sampled = parts.sample_groups(
            problems, config.rollout.sampling, group_size=config.batch.group_size, step=step
        )
        groups = parts.score(sampled)
        drawn += wanted
        useful += [group for group in groups if group.has_spread]
        flat += [group for group in groups if not group.has_spread]
    return Rollout(useful + flat[len(flat) - (prompts - len(useful)) :], drawn)


@pytest.mark.parametrize("max_draws", [1.4, 2, 4])
def test_dynamic_sampling_draws_what_rounds_would_draw_whatever_the_timing(
    max_draws: float,
) -> None:
    with parts_for(f"rollout.max_draws={max_draws}") as parts:
        expected = in_rounds(parts, 3, 2)
        assert expected.drawn > 5, "nothing had to be replaced"
        for _ in range(8):
            assert run_sync(collect_step(parts, 3, 2)) == expected
        assert isinstance(parts.engine, Delayed) and parts.engine.most == 5


def test_without_it_groups_come_in_the_order_of_their_problems() -> None:
    with parts_for() as parts:
        rollout = run_sync(collect_step(parts, 0, 7))
        problems = draw(parts.problems["train"], 7, 5, parts.config.seed)
    assert [group.problem for group in rollout.groups] == [problem for problem, _ in problems]
    assert rollout.drawn == 5


def test_rewards_are_scored_while_other_answers_are_sampled() -> None:
    calls: list[int] = []

    def slow(completions: list[Any], **_: Any) -> list[float]:
        calls.append(len(completions))
        time.sleep(0.05)
        return [float(len(turns[0]["content"])) for turns in completions]

    with parts_for(reward=slow) as parts, Clock() as clock:
        assert isinstance(parts.engine, Delayed)
        parts.engine.pause = 1.0
        run_sync(collect_step(parts, 0, 0))
    assert len(calls) > 1 and sum(calls) == 20
    assert clock.phases["reward"] < 0.05 * len(calls)  # the rest was hidden behind sampling


def test_answers_that_end_together_are_scored_in_one_call() -> None:
    calls: list[int] = []

    def counted(completions: list[Any], **_: Any) -> list[float]:
        calls.append(len(completions))
        return [1.0] * len(completions)

    with parts_for(reward=counted) as parts:
        assert isinstance(parts.engine, Delayed)
        parts.engine.pause = 0.0
        run_sync(collect_step(parts, 0, 0))
    assert calls == [20]


def test_a_reward_that_fails_ends_the_step_and_what_it_still_samples() -> None:
    def fails(completions: list[Any], **_: Any) -> list[float]:
        raise ValueError("no such answer")

    async def run(parts: Parts) -> int:
        with pytest.raises(RewardError, match="no such answer"):
            await collect_step(parts, 0, 0)
        return len(asyncio.all_tasks()) - 1

    with parts_for(reward=fails) as parts:
        assert isinstance(parts.engine, Delayed)
        parts.engine.pause = 0.3
        assert run_sync(run(parts)) == 0
