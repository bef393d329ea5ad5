"""The loss of every preset, along every axis, against loops that share no code with it."""

from dataclasses import replace

import pytest
import torch

from groupwise.batch import Denominator
from groupwise.objective.objective import PRESETS, Objective
from plain_reference import reference_loss
from random_steps import MAX_TOKENS, Step, Tokens, gradients, objective, policy_loss, random_step

KL = {"kl_weight": 0.3}
VARIANTS: dict[str, dict] = {
    "plain": {},
    "kl_k1": {**KL, "kl_estimator": "k1"},
    "kl_k2": {**KL, "kl_estimator": "k2"},
    "kl_k3": KL,
    "kl_unbiased": {**KL, "kl_unbiased": True},
    "kl_in_reward": {**KL, "kl_in": "reward"},
    "mismatch_token_truncate": {"mismatch": "token", "mismatch_max": 1.3, "mismatch_min": 0.8},
    "mismatch_token_mask": {"mismatch": "token", "mismatch_mode": "mask", "mismatch_max": 1.4},
    "mismatch_sequence_truncate": {"mismatch": "sequence", "mismatch_max": 1.5},
    "mismatch_sequence_mask": {
        "mismatch": "sequence",
        "mismatch_mode": "mask",
        "mismatch_min": 0.5,
        "mismatch_max": 1.5,
    },
    "off_policy_limit": {"off_policy_limit": 0.05},
}


def used(step: Step, o: Objective) -> Step:
    """The step with only what the objective needs, so that no extra input is silently used."""
    drop = [] if o.kl_weight else ["ref_logprobs_BT"]
    if o.mismatch == "none" and o.off_policy_limit is None:
        drop.append("sampler_logprobs_BT")
    return step.without(*drop)


def check(step: Step, o: Objective, entropy_weight: float = 0.0) -> None:
    expected = reference_loss(step.answers(), o, MAX_TOKENS, entropy_weight)
    expected_grads = gradients(expected, step.tokens)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-6)):
        tokens = step.cast(dtype)
        loss, _ = policy_loss(tokens, o, step.denominator, entropy_weight)
        assert loss.item() == pytest.approx(expected.item(), rel=tolerance, abs=tolerance)
        for got, want in zip(gradients(loss, tokens), expected_grads, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_loss_and_gradient_equal_the_explicit_loops(preset, variant):
    o = objective(preset=preset, **VARIANTS[variant])
    check(used(random_step(1), o).without("keep_BT"), o)


@pytest.mark.parametrize("preset", PRESETS)
def test_on_policy_loss_needs_no_old_log_probs(preset):
    o = objective(preset=preset)
    step = used(random_step(2), o).without("keep_BT", "old_logprobs_BT")
    check(step, o)
    explicit = step.having(old_logprobs_BT=step.tokens.logprobs_BT.detach())
    loss, _ = policy_loss(step.tokens, o, step.denominator)
    same, _ = policy_loss(explicit.tokens, o, step.denominator)
    assert loss.item() == same.item()


@pytest.mark.parametrize("preset", PRESETS)
def test_advantages_may_differ_from_token_to_token(preset):
    o = objective(preset=preset)
    check(used(random_step(3, by_token=True), o).without("keep_BT"), o)


@pytest.mark.parametrize("preset", PRESETS)
def test_top_entropy_drops_surrogate_and_bonus_of_other_tokens_but_not_their_kl(preset):
    o = objective(preset=preset, top_entropy=0.6, **KL)
    check(used(random_step(4), o), o, entropy_weight=0.7)


@pytest.mark.parametrize(
    "aggregate", ["sequence_mean", "token_mean", "fixed_length", "sequence_sum"]
)
@pytest.mark.parametrize("surrogate", ["clip", "reinforce", "cispo", "sapo", "vespo", "gmpo"])
def test_every_surrogate_goes_with_every_aggregation(surrogate, aggregate):
    o = objective(surrogate=surrogate, aggregate=aggregate, kl_weight=0.1, mismatch="token")
    check(used(random_step(5), o).without("keep_BT"), o, entropy_weight=0.2)


@pytest.mark.parametrize("surrogate", ["clip", "cispo", "sapo"])
def test_a_sequence_ratio_goes_with_surrogates_that_use_a_ratio(surrogate):
    chosen = {"kind": "cispo", "cispo_max": 1.05} if surrogate == "cispo" else surrogate
    o = objective(surrogate=chosen, ratio="sequence", kl_weight=0.2, kl_unbiased=True)
    check(used(random_step(6), o).without("keep_BT"), o)


def test_clip_max_bounds_the_ratio_of_negative_advantages():
    o = objective(clip_max=1.3)
    for seed in range(5):
        check(used(random_step(seed), o).without("keep_BT"), o)


def test_all_corrections_at_once():
    o = objective(
        preset="dapo",
        clip_max=1.5,
        kl_weight=0.2,
        kl_unbiased=True,
        mismatch="sequence",
        off_policy_limit=0.1,
        top_entropy=0.6,
    )
    for seed in range(5):
        check(random_step(seed), o, entropy_weight=0.4)


def test_hand_computed_grpo_loss():
    # Two answers of 1 and 2 tokens. Ratios: 1.5 (clipped to 1.2), and 0.5 and 1.0 with A = -1 (the
    # first clipped to 0.8). Loss = mean of -1.2 and (0.8 + 1.0) / 2.
    log = torch.tensor([1.5, 0.5, 1.0], dtype=torch.float64).log()
    logprobs = torch.tensor([[0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    logprobs[0, 0], logprobs[1, 0], logprobs[1, 1] = log[0] - 3, log[1] - 3, log[2] - 3
    tokens = Tokens(
        logprobs_BT=logprobs.requires_grad_(),
        mask_BT=torch.tensor([[True, False], [True, True]]),
        advantages_BT=torch.tensor([[1.0], [-1.0]], dtype=torch.float64),
        old_logprobs_BT=torch.full((2, 2), -3.0, dtype=torch.float64),
    )
    loss, metrics = policy_loss(tokens, objective(), Denominator(2, 3, 2))
    assert loss.item() == pytest.approx((-1.2 + 0.9) / 2, abs=1e-12)
    (grad,) = torch.autograd.grad(loss, tokens.logprobs_BT)
    assert grad.flatten().tolist() == pytest.approx([0, 0, 0, 1 / 4], abs=1e-12)
    means = {name: (total / count).item() for name, (total, count) in metrics.items()}
    assert means == pytest.approx({"ratio": 1.0, "clip_low": 1 / 3, "clip_high": 1 / 3})


def test_metrics_are_token_means_that_add_up_over_micro_batches():
    o = objective(
        kl_weight=0.1, mismatch="token", mismatch_max=1.2, off_policy_limit=0.05, ratio="sequence"
    )
    x = random_step(8).tokens
    _, whole = policy_loss(x, o, random_step(8).denominator)
    over = Denominator(answers=6, tokens=1, max_tokens=1)
    parts = []
    for rows in (slice(0, 2), slice(2, 6)):
        part = replace(x, **{name: value[rows] for name, value in vars(x).items()})
        parts.append(policy_loss(part, o, over)[1])
    names = "ratio clip_low clip_high sampler_gap mismatch off_policy kl entropy"
    assert set(whole) == set(names.split())
    for name, (total, count) in whole.items():
        assert count == x.mask_BT.sum()
        assert not total.requires_grad
        assert sum(part[name][0].item() for part in parts) == pytest.approx(total.item(), abs=1e-12)
        assert sum(part[name][1].item() for part in parts) == count.item()
    ref, old, sampler = x.ref_logprobs_BT, x.old_logprobs_BT, x.sampler_logprobs_BT
    assert ref is not None and old is not None and sampler is not None
    d = ref - x.logprobs_BT.detach()
    kl = ((d.exp() - d - 1) * x.mask_BT).sum() / x.mask_BT.sum()
    assert (whole["kl"][0] / whole["kl"][1]).item() == pytest.approx(kl.item())
    gap = ((old - sampler).abs() * x.mask_BT).sum()
    assert whole["sampler_gap"][0].item() == pytest.approx(gap.item())


def test_an_objective_that_lacks_an_input_fails_loudly():
    x = random_step(0).without("ref_logprobs_BT", "sampler_logprobs_BT", "entropies_BT").tokens
    over = Denominator(6, 20, 7)
    with pytest.raises(AssertionError, match="ref_logprobs"):
        policy_loss(x, objective(kl_weight=0.1), over)
    with pytest.raises(AssertionError, match="sampler_logprobs"):
        policy_loss(x, objective(mismatch="token"), over)
    with pytest.raises(AssertionError, match="entropies"):
        policy_loss(x, objective(), over, entropy_weight=0.1)
