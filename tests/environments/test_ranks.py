"""Episodes over several ranks: the same credit, the same counts, one verdict on failures."""

from dataclasses import replace
from typing import Any

import pytest

from distributed.test_world import in_threads
from environments.scripted import episodes
from environments.test_credit import PATHS, group_of, split
from groupwise.batch import make_batch
from groupwise.distributed.world import World
from groupwise.environments.base import AllEpisodesFailed
from groupwise.environments.metrics import episode_metrics
from groupwise.errors import ConfigError
from groupwise.load import load_parts
from groupwise.objective.assign import assign_advantages
from groupwise.objective.objective import Objective
from groupwise.recipe import load_recipe
from groupwise.rollout.groups import Rollout
from groupwise.training.exchange import assign_over_ranks, own_share
from groupwise.training.in_flight import recent_tokens
from groupwise.types import Completion, Episode, Group, Problem

GROUPS = [group_of(PATHS), group_of(PATHS[::-1]), group_of((PATHS[0], PATHS[2]))]


@pytest.mark.parametrize("turn_weight", [None, 0.5])
@pytest.mark.parametrize("scale", ["group", "none"])
def test_credit_is_that_of_one_process(scale: str, turn_weight: float | None) -> None:
    """Also where only one rank has an episode that was split."""
    objective = Objective.model_validate({"advantage": {"kind": "group", "scale": scale}})
    groups = [GROUPS[0], split(GROUPS[1]), GROUPS[2]]
    whole = assign_advantages(make_batch(groups), objective, {"r": 1.0}, turn_weight)

    def work(world: Any) -> object:
        own = own_share(Rollout(groups, 3), world)
        batch = replace(
            make_batch(own.groups), group_indices=own.group_indices, group_total=own.group_total
        )
        return assign_over_ranks(batch, objective, {"r": 1.0}, world, turn_weight).groups

    assert in_threads(4, work) == [whole.groups[n : n + 1] for n in range(4)]


def test_metrics_are_means_over_the_episodes_of_all_ranks() -> None:
    def work(world: Any) -> object:
        return episode_metrics(GROUPS[world.rank : world.rank + 1], world)

    expected = episode_metrics(GROUPS)
    assert expected["episode/turns"] == pytest.approx(13 / 8)
    for metrics in in_threads(4, work):
        assert metrics == pytest.approx(expected)


def failed(name: str) -> Group:
    answer = Completion((), (), "environment", episode=Episode(error=f"{name} broke"))
    return Group(Problem(name, "?"), (1,), (answer,))


def test_all_ranks_stop_where_no_episode_of_any_ended_well() -> None:
    runner = episodes(lambda problem: None)

    def work(groups: list[list[Group]]) -> Any:
        def check(world: Any) -> object:
            try:
                runner.check(groups[world.rank], world)
            except AllEpisodesFailed as error:
                return str(error)
            return None

        return in_threads(3, check)

    assert work([[failed("a")], GROUPS[:1], []]) == [None] * 3
    assert all("a broke" in said for said in work([[failed("a")], [failed("b")], []]))


def test_an_episode_that_failed_at_once_is_never_too_old() -> None:
    (answer,) = failed("a").completions
    assert recent_tokens(answer, 7) == answer


@pytest.mark.parametrize(
    ("ranks", "overrides"),
    [(2, ["algorithm.scale=batch"]), (1, ["timing=in_flight"])],
)
def test_credit_by_turn_is_refused_where_it_would_be_wrong(
    ranks: int, overrides: list[str]
) -> None:
    environment = ["environment=my.py:Env", "environment.turn_rewards=true"]
    config = load_recipe("demo", [*environment, *overrides])
    with pytest.raises(ConfigError, match="turn_rewards cannot work"):
        load_parts(config, training=True, world=World(0, ranks))
