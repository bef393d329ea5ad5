"""The small pieces on their own: numbers worked out by hand."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.batch import Denominator
from groupwise.objective.aggregate import AGGREGATE_FORMULAS, AGGREGATES
from groupwise.objective.entropy import (
    adapt_entropy_weight,
    applied_entropy_weight,
    entropy_threshold,
    mean_entropy,
)
from groupwise.objective.kl import KL_ESTIMATORS
from groupwise.objective.objective import Objective
from groupwise.objective.ratios import (
    importance_ratio,
    log_ratios,
    mismatch_ratio,
    off_policy_answers,
)
from groupwise.objective.surrogates import SURROGATES, Terms
from random_steps import objective

LOSS_BT = torch.tensor([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0]])
MASK_BT = torch.tensor([[True, True, False], [True, False, False]])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sequence_mean", (1.5 + 4) / 8),
        ("token_mean", 7 / 20),
        ("fixed_length", 7 / (8 * 10)),
        ("sequence_sum", 7 / 8),
        ("microbatch_token_mean", 7 / 3 / 4),
    ],
)
def test_aggregation_divides_by_the_counts_of_the_whole_step(name, value):
    over = Denominator(answers=8, tokens=20, max_tokens=10, microbatches=4)
    assert AGGREGATES[name](LOSS_BT, MASK_BT, over).item() == pytest.approx(value)


def test_every_choice_of_an_objective_has_its_function():
    fields = Objective.model_fields
    for field, functions in (
        ("aggregate", AGGREGATES),
        ("aggregate", AGGREGATE_FORMULAS),
        ("kl_estimator", KL_ESTIMATORS),
    ):
        assert set(functions) == set(get_args(fields[field].annotation))


def test_kl_estimators_and_their_mean_over_samples():
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    exact = (policy * (policy / reference).log()).sum().item()
    mean = {
        name: (policy * estimate(policy.log(), reference.log())).sum().item()
        for name, estimate in KL_ESTIMATORS.items()
    }
    assert mean["k1"] == pytest.approx(exact, abs=1e-7)
    assert mean["k3"] == pytest.approx(exact, abs=1e-7)
    assert mean["k2"] == pytest.approx(exact, rel=0.1)


def test_unbiased_kl_has_the_gradient_of_the_exact_kl():
    # Sum over all tokens weighted by the sampling policy, so that the expectation is exact.
    logits = torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    logprobs = logits.log_softmax(-1)
    old = logprobs.detach()
    exact = torch.autograd.grad((logprobs.exp() * (logprobs - reference.log())).sum(), logits)[0]
    logprobs = logits.log_softmax(-1)
    ratio = (logprobs - old).exp()
    k3 = KL_ESTIMATORS["k3"](logprobs, reference.log())
    corrected = torch.autograd.grad((old.exp() * ratio * k3).sum(), logits, retain_graph=True)[0]
    plain = torch.autograd.grad((old.exp() * k3).sum(), logits)[0]
    torch.testing.assert_close(corrected, exact)
    assert (plain - exact).abs().max() > 1e-2


def test_sequence_ratio_is_the_geometric_mean_over_the_answers_tokens():
    ratios_BT = torch.tensor([[2.0, 0.5, 99.0], [3.0, 99.0, 99.0]])
    log_ratio_BT = log_ratios(ratios_BT.log(), torch.zeros(2, 3), MASK_BT)
    token = importance_ratio(log_ratio_BT, MASK_BT, "token")
    assert token[MASK_BT].tolist() == pytest.approx([2.0, 0.5, 3.0])
    sequence = importance_ratio(log_ratio_BT, MASK_BT, "sequence")
    assert sequence.shape == (2, 1)
    assert sequence.flatten().tolist() == pytest.approx([1.0, 3.0])


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("advantage", [1.5, -0.5])
def test_every_surrogate_starts_as_the_policy_gradient(name, advantage):
    logprobs = torch.tensor([[-1.0, -2.0, 0.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    log_ratio = log_ratios(logprobs, logprobs.detach(), mask)
    A = torch.tensor([[advantage]], dtype=torch.float64)
    terms = Terms(logprobs, log_ratio, log_ratio.exp(), A, mask)
    loss = objective(surrogate=name).surrogate.loss(terms)
    (grad,) = torch.autograd.grad((loss * mask).sum(), logprobs)
    assert grad.flatten().tolist() == pytest.approx([-advantage, -advantage, 0.0], abs=1e-12)


def one_token_loss(name: str, ratio: float, advantage: float, **settings) -> tuple[float, float]:
    """The loss of one token and its derivative by log pi."""
    logprobs = torch.tensor([[math.log(ratio) - 1.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    log_ratio = log_ratios(logprobs, torch.full_like(logprobs, -1.0), mask)
    A = torch.tensor([[advantage]], dtype=torch.float64)
    terms = Terms(logprobs, log_ratio, log_ratio.exp(), A, mask)
    loss = objective(surrogate=name, **settings).surrogate.loss(terms)
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    return loss.item(), grad.item()


def test_clip_stops_pushing_outside_its_range_on_the_side_of_the_advantage():
    assert one_token_loss("clip", 1.5, 1.0) == pytest.approx((-1.2, 0.0))
    assert one_token_loss("clip", 0.5, 1.0) == pytest.approx((-0.5, -0.5))
    assert one_token_loss("clip", 0.5, -1.0) == pytest.approx((0.8, 0.0))
    assert one_token_loss("clip", 3.0, -1.0) == pytest.approx((3.0, 3.0))
    assert one_token_loss("clip", 3.0, -1.0, clip_max=2.0) == pytest.approx((2.0, 0.0))


def test_cispo_weighs_by_a_bounded_ratio_and_keeps_the_gradient():
    assert one_token_loss("cispo", 8.0, 1.0)[1] == pytest.approx(-5.0)
    assert one_token_loss("cispo", 2.0, 1.0)[1] == pytest.approx(-2.0)


def test_vespo_damps_answers_that_moved_far_and_folds_in_the_mismatch():
    phi = math.exp(3 + 2 * math.log(2.0) - 3 * 2.0)
    assert one_token_loss("vespo", 2.0, 1.0)[1] == pytest.approx(-phi)
    phi = math.exp(2 + 3 * math.log(2.0) - 2 * 2.0)
    assert one_token_loss("vespo", 2.0, -1.0)[1] == pytest.approx(phi)
    logprobs, mask = torch.full((1, 1), -1.0), torch.ones(1, 1, dtype=torch.bool)
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    terms = Terms(logprobs, zero, one, one, mask, rho=torch.full((1, 1), 2.0))
    loss = objective(preset="vespo").surrogate.loss(terms)
    assert loss.item() == pytest.approx(math.exp(3 + 2 * math.log(2.0) - 3 * 2.0))


def test_gmpo_bounds_the_log_ratio_on_the_side_of_the_advantage():
    edge = math.exp(0.4)
    assert one_token_loss("gmpo", 3.0, 1.0) == pytest.approx((-edge, 0.0))
    assert one_token_loss("gmpo", 0.2, 1.0) == pytest.approx((-0.2, -0.2))
    assert one_token_loss("gmpo", 0.2, -1.0) == pytest.approx((1 / edge, 0.0))
    assert one_token_loss("gmpo", 3.0, -1.0) == pytest.approx((3.0, 3.0))


def test_clip_edges_are_where_the_gradient_of_the_surrogate_ends():
    for name, advantage in (("clip", 1.0), ("gmpo", 1.0), ("clip", -1.0), ("gmpo", -1.0)):
        edges = objective(surrogate=name).surrogate.clip_edges()
        assert edges is not None
        edge = edges[1] if advantage > 0 else edges[0]
        outward = 1 + 1e-6 * advantage
        assert one_token_loss(name, edge * outward, advantage)[1] == 0
        assert one_token_loss(name, edge / outward, advantage)[1] != 0
    assert objective(surrogate="cispo", cispo_max=4.0).surrogate.clip_edges() == (0.0, 4.0)
    assert objective(surrogate="reinforce").surrogate.clip_edges() is None


def test_mismatch_ratio_bounds():
    old = torch.tensor([[4.0, 0.1, 1.0]]).log()
    sampler = torch.zeros(1, 3)
    mask = torch.tensor([[True, True, False]])

    def rho(level, mode, high=2.0):
        o = objective(mismatch=level, mismatch_mode=mode, mismatch_min=0.5, mismatch_max=high)
        return mismatch_ratio(old, sampler, mask, o).flatten().tolist()

    assert rho("token", "truncate") == pytest.approx([2.0, 0.5, 1.0])
    assert rho("token", "mask") == pytest.approx([0.0, 0.0, 1.0])
    assert rho("sequence", "truncate") == pytest.approx([0.5])
    assert rho("sequence", "mask") == pytest.approx([0.0])
    below_one = rho("token", "truncate", high=0.9)
    assert below_one == pytest.approx([0.9, 0.5, 1.0]), "padding weighs 1"


def test_off_policy_answers_are_negative_ones_that_the_policy_moved_away_from():
    logprobs = torch.tensor([[-3.0, -3.0, 0.0], [-3.0, 0.0, 0.0]])
    sampler = torch.full((2, 3), -2.0)
    moved_by_one = (logprobs, sampler, MASK_BT)
    negative, mixed = torch.tensor([[-1.0], [-1.0]]), torch.tensor([[1.0], [0.0]])
    assert off_policy_answers(*moved_by_one, negative, 0.9).flatten().tolist() == [True, True]
    assert off_policy_answers(*moved_by_one, negative, 1.1).flatten().tolist() == [False, False]
    assert off_policy_answers(*moved_by_one, mixed, 0.9).flatten().tolist() == [False, False]


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.floats(0, 12), min_size=1, max_size=40),
    top=st.floats(0.01, 1.0),
)
def test_entropy_threshold_is_torchs_quantile(values, top):
    entropies = torch.tensor(values, dtype=torch.float64)
    want = torch.quantile(entropies, 1 - top)
    assert entropy_threshold(entropies, top).item() == pytest.approx(want.item(), abs=1e-12)


def test_entropy_threshold_keeps_the_asked_share():
    entropies = torch.arange(100, dtype=torch.float64)
    assert (entropies >= entropy_threshold(entropies, 0.2)).sum() == 20
    assert (entropies >= entropy_threshold(entropies, 1.0)).all()
    assert entropy_threshold(torch.zeros(0), 0.5).item() == 0


def test_entropy_bonus_is_a_mean_over_the_tokens_it_acts_on():
    over = Denominator(answers=2, tokens=6, max_tokens=3, kept_tokens=4)
    assert mean_entropy(LOSS_BT, MASK_BT, None, over).item() == pytest.approx(7 / 6)
    keep_BT = torch.tensor([[True, False, True], [True, True, True]])
    assert mean_entropy(LOSS_BT, MASK_BT, keep_BT, over).item() == pytest.approx(5 / 4)


def test_adaptive_entropy_weight_rises_under_the_target_falls_above_and_stays_in_bounds():
    o = objective(entropy_target=1.0, entropy_delta=0.1, entropy_weight_max=0.25)
    assert adapt_entropy_weight(0.1, 0.5, o) == pytest.approx(0.2)
    assert adapt_entropy_weight(0.2, 0.5, o) == pytest.approx(0.25)
    assert adapt_entropy_weight(0.2, 1.5, o) == pytest.approx(0.1)
    assert adapt_entropy_weight(0.05, 1.5, o) == 0
    assert adapt_entropy_weight(0.05, 1.5, objective()) == 0.05


def test_adaptive_entropy_bonus_is_off_above_the_target_and_before_the_first_measurement():
    o = objective(entropy_target=1.0)
    assert applied_entropy_weight(0.3, 0.9, o) == 0.3
    assert applied_entropy_weight(0.3, 1.1, o) == 0
    assert applied_entropy_weight(0.3, None, o) == 0
    assert applied_entropy_weight(0.3, None, objective()) == 0.3
