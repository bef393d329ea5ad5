"""From problems to groups of answers, and from answers to rewards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from groupwise.config import RolloutSettings
from groupwise.distributed.world import World
from groupwise.policy.load import Policy
from groupwise.policy.prompts import decode
from groupwise.rewards.base import weighted
from groupwise.rewards.length import overlong_penalty
from groupwise.rewards.scorer import Scorer
from groupwise.rollout.engine import Engine
from groupwise.rollout.noise import answer_key
from groupwise.rollout.sampling import spread_temperatures
from groupwise.types import (
    Completion,
    Group,
    Problem,
    Request,
    Sampling,
    group_from_json,
    to_json,
)

Prompted = tuple[Problem, tuple[int, ...]]
"""A problem and its prompt's tokens."""


@dataclass(frozen=True)
class Rollout:
    """The scored groups of one step."""

    groups: list[Group]
    drawn: int
    """Problems drawn for them: more than len(groups) when dynamic sampling replaced some."""


def sample_groups(
    problems: Sequence[Prompted],
    engine: Engine,
    policy: Policy,
    sampling: Sampling,
    *,
    group_size: int,
    seed: int,
    step: int | str,
    temperatures: tuple[float, float] | None = None,
) -> list[Group]:
    """`group_size` answers to each problem, decoded and not yet scored.

    With `temperatures`, lowest and highest, a group's answers are spread evenly over them, the
    first being the coolest; the engine is then asked once for each temperature.
    """
    requests = [
        Request(tokens, tuple(_key(seed, step, problem, index) for index in range(group_size)))
        for problem, tokens in problems
    ]
    if temperatures is None:
        answers = engine.generate(requests, sampling)
    else:
        answers = _spread_answers(engine, requests, sampling, group_size, temperatures)
    return [
        Group(problem, tokens, tuple(_with_text(c, problem, policy) for c in completions))
        for (problem, tokens), completions in zip(problems, answers, strict=True)
    ]


def _key(seed: int, step: int | str, problem: Problem, index: int) -> int:
    again = (problem.occurrence,) if problem.occurrence else ()
    return answer_key(seed, step, problem.id, index, *again)


def own_problems(world: World, problems: Sequence[Prompted]) -> list[Prompted]:
    """This rank's share: every `size`-th."""
    return list(problems[world.rank :: world.size])


def gather_groups(world: World, own: Sequence[Group], problems: Sequence[Prompted]) -> list[Group]:
    """The groups of all ranks, in the order of `problems`; `own` are those of `own_problems`."""
    if world.size == 1:
        return list(own)
    nobody = Problem("", "")  # all ranks have the problems already
    parts = world.gather([to_json(replace(group, problem=nobody)) for group in own])
    return [
        replace(group_from_json(parts[n % world.size][n // world.size]), problem=problem)
        for n, (problem, _) in enumerate(problems)
    ]


def _spread_answers(
    engine: Engine,
    requests: Sequence[Request],
    sampling: Sampling,
    group_size: int,
    temperatures: tuple[float, float],
) -> list[tuple[Completion, ...]]:
    columns: list[list[Completion]] = []
    for index, temperature in enumerate(spread_temperatures(group_size, *temperatures)):
        one_each = [replace(request, keys=request.keys[index : index + 1]) for request in requests]
        drawn = engine.generate(one_each, replace(sampling, temperature=temperature))
        columns.append([replace(answer, temperature=temperature) for (answer,) in drawn])
    return list(zip(*columns, strict=True))


def score_groups(groups: Sequence[Group], scorer: Scorer, rollout: RolloutSettings) -> list[Group]:
    """Every reward on every answer, and their weighted sum; the soft length penalty is one more."""
    flat = [(group.problem, c) for group in groups for c in group.completions]
    scores = scorer.score([problem for problem, _ in flat], [c.text for _, c in flat])
    if rollout.overlong_buffer:
        limit, buffer = rollout.max_completion_tokens, rollout.overlong_buffer
        scores["overlong"] = [overlong_penalty(len(c.tokens), limit, buffer) for _, c in flat]
    totals = weighted(scores, reward_weights(scorer, rollout))
    scored, start = [], 0
    for group in groups:
        part = slice(start, start := start + len(group.completions))
        parts = {name: tuple(values[part]) for name, values in scores.items()}
        scored.append(replace(group, scores=parts, rewards=tuple(totals[part])))
    return scored


def reward_weights(scorer: Scorer, rollout: RolloutSettings) -> dict[str, float]:
    own = {"overlong": 1.0} if rollout.overlong_buffer else {}
    return {reward.name: reward.weight for reward in scorer.rewards} | own


def _with_text(completion: Completion, problem: Problem, policy: Policy) -> Completion:
    text = problem.prefill + decode(completion.tokens, policy.tokenizer, policy.eos_ids)
    return replace(completion, text=text)
