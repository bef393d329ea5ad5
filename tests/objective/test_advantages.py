"""Advantages against loops over plain floats, and against TRL's formulas."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.batch import make_batch
from groupwise.objective.advantages import GroupRewards
from groupwise.objective.advantages.gdpo import Gdpo
from groupwise.objective.advantages.group import GroupAdvantage
from groupwise.objective.assign import assign_advantages
from groupwise.objective.objective import Objective
from groupwise.types import Completion, Group, Problem
from random_steps import default_dtype, objective


def advantages(groups, o: Objective, weights) -> list[Group]:
    return list(assign_advantages(make_batch(groups), o, weights).groups)


def per_reward_advantages(scores_RNG: torch.Tensor, weights_R: torch.Tensor) -> torch.Tensor:
    scores = {str(n): scores_NG for n, scores_NG in enumerate(scores_RNG)}
    weights = {str(n): weight for n, weight in enumerate(weights_R.tolist())}
    return Gdpo().estimate(GroupRewards(scores_RNG[0], scores, weights))


reward = st.one_of(st.none(), st.floats(-10, 10), st.sampled_from([0.0, 1.0]))
ragged = st.lists(st.lists(reward, min_size=1, max_size=6), min_size=1, max_size=5)


def make_group(rewards, scores=None, completions=None) -> Group:
    empty = Completion(tokens=(1,), logprobs=(-1.0,), stop="eos")
    return Group(
        problem=Problem(id="p", prompt="p"),
        prompt_tokens=(1,),
        completions=completions or (empty,) * len(rewards),
        scores=scores or {},
        rewards=tuple(rewards),
    )


def deviation(known: list[float]) -> float:
    return statistics.stdev(known) if len(known) > 1 else 0.0


def by_loops(rows, baseline: str, scale: str) -> list[list[float]]:
    everything = [r for row in rows for r in row if r is not None]
    out = []
    for row in rows:
        known = [r for r in row if r is not None]
        line = []
        for i, r in enumerate(row):
            others = [s for j, s in enumerate(row) if s is not None and j != i]
            if r is None or not others:
                line.append(0.0)
                continue
            base = statistics.mean(others if baseline == "leave_one_out" else known)
            std = {"group": deviation(known), "batch": deviation(everything), "none": None}[scale]
            line.append((r - base) / (1.0 if std is None else std + 1e-4))
        out.append(line)
    return out


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@settings(max_examples=40, deadline=None)
@given(rows=ragged)
def test_advantages_equal_the_loops_for_ragged_groups_with_missing_rewards(baseline, scale, rows):
    o = objective(baseline=baseline, scale=scale)
    groups = advantages([make_group(row) for row in rows], o, {})
    for group, want in zip(groups, by_loops(rows, baseline, scale), strict=True):
        assert all(isinstance(value, float) for value in group.advantages)
        assert list(group.advantages) == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_hand_computed_group_with_a_missing_reward():
    (group,) = advantages([make_group((1.0, 0.0, None, 0.5))], objective(), {})
    assert group.advantages == pytest.approx((0.5 / 0.5001, -0.5 / 0.5001, 0.0, 0.0))


def test_leave_one_out_compares_with_the_others_only():
    (group,) = advantages([make_group((3.0, 0.0, 0.0))], objective(preset="rloo"), {})
    assert group.advantages == pytest.approx((3.0, -1.5, -1.5))


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_single_answers_and_unscored_groups_give_exactly_zero(scale):
    rows = [(0.1 + 0.2,) * 7, (5.0,), (None, None), (None, 2.0), (1.0, 0.0)]
    groups = advantages([make_group(row) for row in rows], objective(scale=scale), {})
    assert [set(group.advantages) for group in groups[:-1]] == [{0.0}] * 4
    first, second = groups[-1].advantages
    assert isinstance(first, float) and first > 0 and second == -first


def test_no_groups_give_no_groups():
    assert advantages([], objective(), {}) == []


def test_only_the_advantages_of_a_group_change():
    group = make_group((1.0, 0.0))
    (filled,) = advantages([group], objective(), {})
    assert replace(filled, advantages=()) == group


SCORES = [
    {"correct": (1.0, 0.0, 0.0, 1.0), "length": (300.0, 100.0, None, 250.0)},
    {"correct": (0.0, 0.0, 0.0, None), "length": (10.0, 20.0, 30.0, None)},
    {"correct": (1.0, None), "length": (None, None)},
]
WEIGHTS = {"correct": 1.0, "length": -0.5, "metric": 0.0}


def gdpo_by_loops(penalty: float = 0.0) -> list[list[float]]:
    sums: list[list[float | None]] = []
    for g, scores in enumerate(SCORES):
        size = len(scores["correct"])
        row: list[float | None] = [None] * size
        for name, values in scores.items():
            known = [v for v in values if v is not None]
            for i, v in enumerate(values):
                if v is not None:
                    z = (v - statistics.mean(known)) / (deviation(known) + 1e-4)
                    row[i] = (row[i] or 0.0) + WEIGHTS[name] * z
        first = row[0]
        if g == 0 and first is not None:
            row[0] = first - penalty
        sums.append(row)
    known = [v for row in sums for v in row if v is not None]
    mean, std = statistics.mean(known), deviation(known)
    return [[0.0 if v is None else (v - mean) / (std + 1e-4) for v in row] for row in sums]


def scored_groups() -> list[Group]:
    return [
        make_group((0.0,) * len(s["correct"]), {**s, "metric": (9.0,) * len(s["correct"])})
        for s in SCORES
    ]


def test_per_reward_normalisation_whitens_the_weighted_z_scores():
    groups = advantages(scored_groups(), objective(advantage="gdpo"), WEIGHTS)
    for group, want in zip(groups, gdpo_by_loops(), strict=True):
        assert list(group.advantages) == pytest.approx(want, abs=1e-12)


def test_per_reward_normalisation_of_a_single_answer_is_zero():
    score = torch.ones(1, 1, 1, dtype=torch.float64)
    assert per_reward_advantages(score, torch.ones(1, dtype=torch.float64)).item() == 0


def kl_completion(old, ref, sampled=None) -> Completion:
    return Completion(
        tokens=(1,) * len(old),
        logprobs=old,
        stop="eos",
        sampled=sampled,
        old_logprobs=old,
        ref_logprobs=ref,
    )


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_reward_is_taken_off_before_the_baseline(estimator):
    d = 0.25  # log ref - log pi at the one token that differs and was sampled
    kl = {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - d - 1}[estimator]
    drifted = kl_completion((-1.0, -1.0, -1.0), (-0.75, -1.0, -9.0), (True, True, False))
    still = kl_completion((-1.0,), (-1.0,))
    o = objective(kl_weight=2.0, kl_in="reward", kl_estimator=estimator, scale="none")
    (group,) = advantages([make_group((1.0, 0.0), completions=(drifted, still))], o, {})
    half = (1.0 - 2.0 * kl) / 2
    assert group.advantages == pytest.approx((half, -half), abs=1e-12)


def test_kl_in_the_reward_leaves_an_unscored_answer_at_zero():
    pair = (kl_completion((-1.0,), (-0.2,)), kl_completion((-1.0,), (-1.0,)))
    o = objective(kl_weight=1.0, kl_in="reward")
    (group,) = advantages([make_group((None, 1.0), completions=pair)], o, {})
    assert group.advantages == (0.0, 0.0)


def test_kl_in_the_reward_with_per_reward_is_taken_off_the_sum_before_whitening():
    groups = scored_groups()
    still = kl_completion((-1.0,), (-1.0,))
    drifted = kl_completion((-1.0,), (-1.5,))  # k1 = 0.5
    groups = [replace(g, completions=(still,) * len(g.rewards)) for g in groups]
    groups[0] = replace(groups[0], completions=(drifted, still, still, still))
    o = objective(advantage="gdpo", kl_weight=0.5, kl_in="reward", kl_estimator="k1")
    filled = advantages(groups, o, WEIGHTS)
    for group, want in zip(filled, gdpo_by_loops(penalty=0.25), strict=True):
        assert list(group.advantages) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_group_advantages_equal_trls_formula(scale):
    nanstd = pytest.importorskip("trl.trainer.utils").nanstd
    g = torch.Generator().manual_seed(0)
    rewards_NG = torch.randn(5, 4, generator=g, dtype=torch.float64)
    rewards_NG[0, 1] = rewards_NG[2, :] = rewards_NG[3, 1:] = torch.nan
    with default_dtype(torch.float64):
        std = nanstd(rewards_NG) if scale == "batch" else nanstd(rewards_NG, dim=1, keepdim=True)
    want = rewards_NG - torch.nanmean(rewards_NG, dim=1, keepdim=True)
    if scale != "none":
        want = want / (std + 1e-4)
    got = GroupAdvantage(scale=scale).estimate(GroupRewards(rewards_NG, {}, {}))
    torch.testing.assert_close(got, torch.nan_to_num(want, nan=0.0), rtol=1e-10, atol=1e-10)


def test_per_reward_advantages_equal_trls_formula():
    nanstd = pytest.importorskip("trl.trainer.utils").nanstd
    g = torch.Generator().manual_seed(1)
    scores_RNG = torch.randn(3, 5, 4, generator=g, dtype=torch.float64)
    scores_RNG[0, 1, 2] = scores_RNG[:, 2, 3] = scores_RNG[1, 4, :] = torch.nan
    weights_R = torch.tensor([1.0, 0.5, -2.0], dtype=torch.float64)
    with default_dtype(torch.float64):
        std = nanstd(scores_RNG, dim=2, keepdim=True)
        zscores = (scores_RNG - torch.nanmean(scores_RNG, dim=2, keepdim=True)) / (std + 1e-4)
        total = (zscores * weights_R[:, None, None]).nansum(0)
        total[torch.isnan(scores_RNG).all(0)] = torch.nan
        want = torch.nan_to_num((total - torch.nanmean(total)) / (nanstd(total) + 1e-4), nan=0.0)
    got = per_reward_advantages(scores_RNG, weights_R)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
