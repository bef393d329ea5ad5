"""A problem that a step draws more than once is answered anew each time."""

from typing import Any

import pytest

from groupwise.load import load_parts
from groupwise.rollout.engine import run_sync
from groupwise.rollout.groups import Prompted, Rollout
from groupwise.training import collect
from groupwise.types import Group
from runs import small_config


def collect_step(*args: Any) -> Rollout:
    return run_sync(collect.collect_step(*args))


def test_a_problem_drawn_twice_in_a_step_gets_two_groups_of_answers() -> None:
    with load_parts(small_config("task.train_size=3", "batch.prompts=6")) as parts:
        groups = collect_step(parts, 0, 0).groups
    with load_parts(small_config("task.train_size=3", "batch.prompts=3")) as parts:
        first_three = collect_step(parts, 0, 0).groups
    answers = {
        (group.problem.id, group.problem.occurrence): [c.tokens for c in group.completions]
        for group in groups
    }
    names = {name for name, _ in answers}
    assert len(names) == 3 and len(answers) == 6
    assert all(answers[name, 0] != answers[name, 1] for name in names)
    # What comes later in a step changes nothing before it.
    assert [[c.tokens for c in group.completions] for group in first_three] == [
        [c.tokens for c in group.completions] for group in groups[:3]
    ]


@pytest.mark.parametrize("max_draws", [1, 4])
def test_occurrences_count_over_all_draws_of_a_step(
    max_draws: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[str, int]] = []

    async def sampled(prompted: Prompted, *args: Any, **kwargs: Any) -> Group:
        problem, tokens = prompted
        drawn.append((problem.id, problem.occurrence))
        return Group(problem, tokens, (), rewards=(1.0, 1.0))

    monkeypatch.setattr(collect, "sample_group", sampled)
    monkeypatch.setattr(collect, "score_groups", lambda groups, *_: groups)
    settings = ("task.train_size=4", "batch.prompts=3", f"rollout.max_draws={max_draws}")
    with load_parts(small_config(*settings)) as parts:
        rollout = collect_step(parts, 0, 0)
    assert rollout.drawn == len(drawn) == int(3 * max_draws) and len(set(drawn)) == len(drawn)
    assert [turn for _, turn in drawn] == [n // 4 for n in range(len(drawn))]
