"""Nothing that a run can produce makes a loss or a gradient NaN or infinite."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.batch import Denominator
from groupwise.objective.objective import PRESETS, Objective
from random_steps import Tokens, gradients, objective, policy_loss, random_step

EVERYTHING = {"kl_weight": 0.1, "mismatch": "token", "off_policy_limit": 0.1}


def loss_and_gradients(x: Tokens, o: Objective, over: Denominator) -> list[torch.Tensor]:
    """Checked to be finite, the metrics as well."""
    loss, metrics = policy_loss(x, o, over, entropy_weight=0.1)
    for total, _ in metrics.values():
        assert total.isfinite()
    results = [loss.detach(), *gradients(loss, x)]
    for result in results:
        assert result.isfinite().all()
    return results


@pytest.mark.parametrize("preset", PRESETS)
def test_a_step_of_empty_answers_has_loss_and_gradient_zero(preset):
    step = random_step(0)
    empty = step.having(mask_BT=torch.zeros_like(step.tokens.mask_BT))
    o = objective(preset=preset, **EVERYTHING)
    for result in loss_and_gradients(empty.tokens, o, empty.denominator):
        assert (result == 0).all()


@pytest.mark.parametrize("preset", PRESETS)
def test_garbage_in_the_padding_changes_nothing(preset):
    step = random_step(1)
    o = objective(preset=preset, **EVERYTHING)
    garbage = {
        "logprobs_BT": -torch.inf,
        "old_logprobs_BT": torch.nan,
        "sampler_logprobs_BT": torch.nan,
        "ref_logprobs_BT": -torch.inf,
        "entropies_BT": torch.nan,
    }
    filled = {
        name: getattr(step.tokens, name).detach().masked_fill(~step.tokens.mask_BT, value)
        for name, value in garbage.items()
    }
    filled["logprobs_BT"].requires_grad_()
    filled["entropies_BT"].requires_grad_()
    want = loss_and_gradients(step.tokens, o, step.denominator)
    got = loss_and_gradients(step.having(**filled).tokens, o, step.denominator)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=15, deadline=None)
@given(
    logprob=st.floats(-200, 0),
    old=st.floats(-200, 0),
    ref=st.floats(-200, 0),
    sampler=st.floats(-200, 0),
    advantage=st.floats(-50, 50),
)
def test_any_log_probs_give_finite_float32_gradients(preset, logprob, old, ref, sampler, advantage):
    def fill(value: float) -> torch.Tensor:
        return torch.full((2, 3), value)

    x = Tokens(
        logprobs_BT=fill(logprob).requires_grad_(),
        mask_BT=torch.tensor([[True, True, True], [True, False, False]]),
        advantages_BT=fill(advantage)[:, :1],
        old_logprobs_BT=fill(old),
        sampler_logprobs_BT=fill(sampler),
        ref_logprobs_BT=fill(ref),
        entropies_BT=fill(1.0).requires_grad_(),
    )
    o = objective(preset=preset, kl_unbiased=True, **EVERYTHING)
    loss_and_gradients(x, o, Denominator(answers=2, tokens=4, max_tokens=3))


@pytest.mark.parametrize("preset", PRESETS)
def test_zero_advantages_without_kl_give_exactly_no_gradient(preset):
    # Groups without spread may therefore be skipped.
    step = random_step(2).without("ref_logprobs_BT", "sampler_logprobs_BT", "keep_BT")
    zero = torch.zeros_like(step.tokens.advantages_BT)
    x = step.having(advantages_BT=zero).tokens
    loss, _ = policy_loss(x, objective(preset=preset), step.denominator)
    assert loss.item() == 0
    assert (gradients(loss, x)[0] == 0).all()
