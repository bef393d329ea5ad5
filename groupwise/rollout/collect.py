"""N problems in, N scored groups out; with dynamic sampling, groups that have spread."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
class Collected:
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


def share_groups(
    world: World, problems: Sequence[Prompted], make: Callable[[list[Prompted]], list[Group]]
) -> list[Group]:
    """`make(problems)`, each rank making the groups of its share; all ranks get all, in order."""
    if world.size == 1:
        return make(list(problems))
    nobody = Problem("", "")  # all ranks have the problems already

    def packed(mine: list[Prompted]) -> list[dict[str, Any]]:
        return [to_json(replace(group, problem=nobody)) for group in make(mine)]

    return [
        replace(group_from_json(found), problem=problem)
        for found, (problem, _) in zip(world.share(problems, packed), problems, strict=True)
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


def collect(
    draw: Callable[[int], list[Prompted]],
    sample: Callable[[list[Prompted]], list[Group]],
    prompts: int,
    max_draws: float,
) -> Collected:
    """Draw, sample and score `prompts` groups.

    With `max_draws` above 1, groups without spread are replaced by fresh ones as long as the budget
    of `max_draws * prompts` problems lasts; when it runs out, the newest of them fill the batch.
    A problem that is drawn more than once is counted, so that each time it gets other answers.
    """
    times_drawn: Counter[str] = Counter()

    def draw_counted(count: int) -> list[Prompted]:
        counted: list[Prompted] = []
        for problem, tokens in draw(count):
            counted.append((replace(problem, occurrence=times_drawn[problem.id]), tokens))
            times_drawn[problem.id] += 1
        return counted

    groups = sample(draw_counted(prompts))
    drawn, budget = prompts, int(max_draws * prompts)
    useful = [group for group in groups if group.has_spread]
    spare = [group for group in groups if not group.has_spread]
    while max_draws > 1 and len(useful) < prompts and drawn < budget:
        wanted = min(prompts - len(useful), budget - drawn)
        fresh = sample(draw_counted(wanted))
        drawn += wanted
        useful += [group for group in fresh if group.has_spread]
        spare += [group for group in fresh if not group.has_spread]
    if max_draws > 1:
        groups = useful + spare[len(spare) - (prompts - len(useful)) :]
    return Collected(groups, drawn)


def _with_text(completion: Completion, problem: Problem, policy: Policy) -> Completion:
    text = problem.prefill + decode(completion.tokens, policy.tokenizer, policy.eos_ids)
    return replace(completion, text=text)
