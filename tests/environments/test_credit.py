"""Credit by turn is unbiased: proven on a decision process whose gradient can be enumerated."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from groupwise.batch import make_batch
from groupwise.environments.metrics import episode_metrics
from groupwise.errors import ConfigError
from groupwise.objective.aggregate import AGGREGATES
from groupwise.objective.assign import assign_advantages
from groupwise.objective.loss import policy_loss
from groupwise.objective.objective import Objective
from groupwise.types import Completion, Episode, Group, Problem, StopReason

# Turn 1: action 0 ends the episode with reward 2; action 1 earns 5 and leads to turn 2, where
# action 0 earns 0 and action 1 earns 0.1. Actions are drawn by softmax of these logits.
LOGITS = torch.tensor([-1.1, 1.1, 0.5, -0.4], dtype=torch.float64)
PATHS: tuple[tuple[int, ...], ...] = ((0,), (1, 0), (1, 1))
REWARDS = {(0,): (2.0,), (1, 0): (5.0, 0.0), (1, 1): (5.0, 0.1)}
SIZE = 3


def probability(path: tuple[int, ...], logits: torch.Tensor) -> torch.Tensor:
    turns = [logits[2 * n : 2 * n + 2].softmax(0)[action] for n, action in enumerate(path)]
    return torch.stack(turns).prod()


def score_function(path: tuple[int, ...], turn: int) -> torch.Tensor:
    """The gradient of the log-probability of one turn's action."""
    logits = LOGITS.clone().requires_grad_()
    logits[2 * turn : 2 * turn + 2].log_softmax(0)[path[turn]].backward()
    assert logits.grad is not None
    return logits.grad


def true_gradient() -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    torch.stack([probability(p, logits) * math.fsum(REWARDS[p]) for p in PATHS]).sum().backward()
    assert logits.grad is not None
    return logits.grad


def group_of(paths: tuple[tuple[int, ...], ...]) -> Group:
    completions = []
    for path in paths:
        tokens = (path[0], 9, path[1]) if len(path) == 2 else path
        sampled = (True, False, True) if len(path) == 2 else None
        episode = Episode(turns=(1,) * len(path), rewards=REWARDS[path])
        logprobs = tuple(-1.0 for _ in tokens)
        completions.append(Completion(tokens, logprobs, "eos", sampled=sampled, episode=episode))
    rewards = tuple(math.fsum(REWARDS[path]) for path in paths)
    return Group(Problem("p", "?"), (1,), tuple(completions), {"r": rewards}, rewards)


def expectation(advantages: Any) -> torch.Tensor:
    """Of the gradient's estimate, over all groups that can be drawn."""
    mean = torch.zeros(4, dtype=torch.float64)
    for paths in itertools.product(PATHS, repeat=SIZE):
        chance = torch.stack([probability(path, LOGITS) for path in paths]).prod()
        estimate = torch.zeros(4, dtype=torch.float64)
        for path, turns in zip(paths, advantages(paths), strict=True):
            for turn, advantage in enumerate(turns):
                estimate += advantage * score_function(path, turn) / SIZE
        mean += chance * estimate
    return mean


def ours(baseline: str, turn_weight: float | None) -> Any:
    objective = Objective.model_validate(
        {"advantage": {"kind": "group", "baseline": baseline, "scale": "none"}}
    )

    def advantages(paths: Any) -> list[list[float]]:
        batch = make_batch([group_of(paths)])
        (group,) = assign_advantages(batch, objective, {"r": 1.0}, turn_weight).groups
        lines = []
        for completion, value in zip(group.completions, group.advantages, strict=True):
            each = value if isinstance(value, tuple) else (value,) * len(completion.tokens)
            own = completion.sampled or (True,)
            lines.append([a for a, sampled in zip(each, own, strict=True) if sampled])
        return lines

    return advantages


def by_turn_number(paths: Any) -> list[list[float]]:
    """What others do: the returns of each turn number, normalised among those that reached it."""
    returns = [[math.fsum(REWARDS[p][t:]) for t in range(len(p))] for p in paths]
    lines = []
    for own in returns:
        line = []
        for turn, value in enumerate(own):
            reached = [other[turn] for other in returns if len(other) > turn]
            mean = math.fsum(reached) / len(reached)
            spread = math.sqrt(math.fsum((r - mean) ** 2 for r in reached) / len(reached))
            line.append((value - mean) / (spread + 1e-4))
        lines.append(line)
    return lines


@pytest.mark.parametrize("turn_weight", [None, 1.0])
def test_the_gradient_s_expectation_is_the_true_gradient(turn_weight: float | None) -> None:
    mean = expectation(ours("leave_one_out", turn_weight))
    torch.testing.assert_close(mean, true_gradient(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("turn_weight", [None, 1.0])
def test_with_the_group_s_own_mean_it_is_a_multiple(turn_weight: float | None) -> None:
    mean = expectation(ours("mean", turn_weight))
    torch.testing.assert_close(mean, true_gradient() * (SIZE - 1) / SIZE, rtol=0, atol=1e-12)


def test_normalising_by_turn_number_points_elsewhere() -> None:
    mean = expectation(by_turn_number)
    cosine = torch.cosine_similarity(mean, true_gradient(), dim=0)
    assert cosine < 0.95, "it is biased, not merely scaled"


def test_turn_rewards_need_an_estimator_with_a_baseline() -> None:
    objective = Objective.model_validate({"advantage": {"kind": "gdpo"}})
    with pytest.raises(ConfigError, match="turn_rewards cannot work"):
        assign_advantages(make_batch([group_of(PATHS)]), objective, {"r": 1.0}, 1.0)


def split(group: Group) -> Group:
    """The same episodes, of which a template rewrote the past before the second turn."""
    completions = []
    for completion in group.completions:
        if completion.sampled is None:
            completions.append(completion)
            continue
        cut = 3
        parts = {name: getattr(completion, name) for name in ("tokens", "logprobs", "sampled")}
        first = replace(completion, **{n: v[:cut] for n, v in parts.items()})
        later = replace(
            completion,
            tokens=(8, 8, *completion.tokens[cut:]),
            logprobs=(0.0, 0.0, *completion.logprobs[cut:]),
            sampled=(False, False, *completion.sampled[cut:]),
            episode=None,
            segment=1,
        )
        completions += [first, later]
    rewards = iter(group.rewards)
    values = tuple(next(rewards) if c.segment == 0 else None for c in completions)
    return replace(group, completions=tuple(completions), scores={"r": values}, rewards=values)


@pytest.mark.parametrize("turn_weight", [None, 1.0])
@pytest.mark.parametrize("aggregate", sorted(AGGREGATES))
def test_an_episode_counts_once_however_often_it_was_split(
    aggregate: str, turn_weight: float | None
) -> None:
    episode = Episode(turns=(3, 2), rewards=(1.0, 0.5))
    long = Completion(
        (3, 4, 5, 9, 9, 6, 7),
        (-0.5, -0.6, -0.7, 0.0, 0.0, -0.8, -0.9),
        "eos",
        sampled=(True, True, True, False, False, True, True),
        episode=episode,
    )
    short = Completion((3, 4), (-0.5, -0.5), "eos", episode=Episode(turns=(2,), rewards=(0.0,)))
    rewards = (1.5, 0.0)
    whole = Group(Problem("p", "?"), (1,), (long, short), {"r": rewards}, rewards)
    objective = Objective.model_validate({"aggregate": aggregate})

    def loss(group: Group) -> tuple[float, int]:
        batch = make_batch([group], max_tokens=8)
        batch = assign_advantages(batch, objective, {"r": 1.0}, turn_weight)
        assert batch.sampler_logprobs_BT is not None
        now = batch.sampler_logprobs_BT * 1.5
        old = replace(batch, old_logprobs_BT=batch.sampler_logprobs_BT)
        return policy_loss(now, None, old, objective)[0].item(), batch.denominator.answers

    value, answers = loss(split(whole))
    assert answers == 2
    assert value == pytest.approx(loss(whole)[0], rel=1e-5)


def test_metrics_are_means_over_episodes() -> None:
    """One episode of one turn with reward 1, one of four turns with reward 0: the mean is 0.5."""
    one = Completion((3,), (0.0,), "eos", episode=Episode(turns=(1,), scores={"won": 1.0}))
    four = Completion(
        (3,) * 8, (0.0,) * 8, "turns", episode=Episode(turns=(2,) * 4, scores={"won": 0.0}, calls=4)
    )
    failed = Completion((), (), "environment", episode=Episode(error="hung", malformed=3))
    group = Group(Problem("p", "?"), (1,), (one, four, failed))
    metrics = episode_metrics([group])
    assert metrics["episode/score/won"] == 0.5
    assert metrics["episode/turns"] == pytest.approx(5 / 3)
    assert metrics["tokens"] == 3 and metrics["tokens_max"] == 8
    assert metrics["episode/failed"] == metrics["episode/turn_limit"] == pytest.approx(1 / 3)
    assert metrics["episode/malformed"] == 1 and metrics["episode/calls"] == pytest.approx(4 / 3)
    assert metrics["episode/called"] == pytest.approx(1 / 3)
    assert episode_metrics([replace(group, completions=())]) == {}


def calling(*arguments: int, stop: StopReason) -> Completion:
    """An episode with a turn for each call."""
    calls = [{"function": {"name": "add", "arguments": {"a": a, "b": 1}}} for a in arguments]
    messages = tuple({"role": "assistant", "content": "", "tool_calls": [call]} for call in calls)
    episode = Episode(messages, (1,) * len(calls), tools=2, calls=len(calls))
    return Completion((3,) * len(calls), (0.0,) * len(calls), stop, episode=episode)


def test_metrics_tell_loops_and_episodes_that_never_answer() -> None:
    answers = (calling(1, 1, 2, 1, stop="turns"), calling(1, 2, stop="eos"), calling(stop="length"))
    metrics = episode_metrics([Group(Problem("p", "?"), (1,), answers)])
    assert metrics["episode/repeated"] == pytest.approx((2 / 4 + 0 + 0) / 3)
    assert metrics["episode/unanswered"] == pytest.approx(1 / 3)
    assert metrics["episode/tools"] == 2
