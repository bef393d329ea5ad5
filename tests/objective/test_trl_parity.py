"""Loss and gradient equal those of TRL 1.16's own `GRPOTrainer._compute_loss`.

The trainer is made without its constructor: only the attributes that the loss reads are set, and
the model's forward pass gives back the drawn tensors. Where we differ on purpose, a test says so
and shows both values.
"""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.batch import Denominator
from groupwise.objective.entropy import (
    adapt_entropy_weight,
    applied_entropy_weight,
    entropy_threshold,
)
from groupwise.objective.objective import Objective
from groupwise.objective.ratios import mismatch_ratio
from random_steps import (
    MAX_TOKENS,
    Step,
    Tokens,
    default_dtype,
    gradients,
    objective,
    policy_loss,
    random_step,
)

trl = pytest.importorskip("trl.trainer.grpo_trainer")


class OneProcess:
    """The parts of accelerate's Accelerator that the loss calls, for a single process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        return tensor

    def pad_across_processes(self, tensor: Tensor, dim: int, pad_index: float) -> Tensor:
        return tensor


def trl_trainer(**settings: Any) -> Any:
    trainer = trl.GRPOTrainer.__new__(trl.GRPOTrainer)
    arguments = {
        "use_bias_correction_kl": False,
        "delta": None,
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "vespo_k_pos": 2.0,
        "vespo_lambda_pos": 3.0,
        "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
        "steps_per_generation": 1,
        "entropy_target": 0.0,
        "entropy_coef_delta": 0.0,
        "entropy_coef_max": 0.0,
        "entropy_coef_min": 0.0,
    }
    attributes = {
        "loss_type": "grpo",
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "beta": 0.0,
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "vllm_importance_sampling_correction": True,
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": MAX_TOKENS,
        "_entropy_bonus_enabled": False,
        "use_adaptive_entropy": False,
        "entropy_coef": 0.0,
        "_last_world_entropy": float("inf"),
        "_entropy_window_stats": None,
        "accelerator": OneProcess(),
        "model": SimpleNamespace(training=True),
        "_metrics": {"train": defaultdict(list)},
    }
    unknown = set(settings) - set(arguments) - set(attributes)
    assert not unknown, unknown
    for name, value in attributes.items():
        setattr(trainer, name, settings.get(name, value))
    trainer.args = SimpleNamespace(**{k: settings.get(k, v) for k, v in arguments.items()})
    return trainer


def trl_loss(trainer: Any, x: Tokens, tokens_of_rollout: int | None = None, rho=None) -> Tensor:
    B, T = x.logprobs_BT.shape
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: (
        x.logprobs_BT,
        x.entropies_BT,
        None,
    )
    inputs: dict[str, Any] = {
        "prompt_ids": torch.zeros(B, 1, dtype=torch.long),
        "prompt_mask": torch.ones(B, 1, dtype=torch.long),
        "completion_ids": torch.zeros(B, T, dtype=torch.long),
        "completion_mask": x.mask_BT.long(),
        "advantages": x.advantages_BT.squeeze(1),  # (B,), or still (B, T)
        "old_per_token_logps": x.old_logprobs_BT,
        "num_items_in_batch": x.mask_BT.sum()
        if tokens_of_rollout is None
        else torch.tensor(tokens_of_rollout),
    }
    if x.ref_logprobs_BT is not None:
        inputs["ref_per_token_logps"] = x.ref_logprobs_BT
    if x.sampler_logprobs_BT is not None:
        inputs["sampling_per_token_logps"] = x.sampler_logprobs_BT
    if rho is not None:
        inputs["importance_sampling_ratio"] = rho
    with default_dtype(x.logprobs_BT.dtype):
        return trainer._compute_loss(trainer.model, inputs)


PRESET_IN_TRL: dict[str, dict[str, Any]] = {
    "grpo": {},
    "bnpo": {"loss_type": "bnpo", "epsilon_high": 0.28},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "gspo": {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"},
    "vespo": {"loss_type": "vespo"},
}

# (our settings, TRL's settings)
AXES: dict[str, tuple[dict, dict]] = {
    "plain": ({}, {}),
    "kl": ({"kl_weight": 0.2}, {"beta": 0.2}),
    "kl_unbiased": (
        {"kl_weight": 0.2, "kl_unbiased": True},
        {"beta": 0.2, "use_bias_correction_kl": True},
    ),
    "off_policy": ({"off_policy_limit": 0.05}, {"off_policy_mask_threshold": 0.05}),
    "mismatch_token_truncate": (
        {"mismatch": "token", "mismatch_min": 0.7, "mismatch_max": 1.4},
        {"use_vllm": True},
    ),
    "mismatch_token_mask": (
        {"mismatch": "token", "mismatch_mode": "mask", "mismatch_min": 0.5, "mismatch_max": 1.6},
        {"use_vllm": True},
    ),
    "mismatch_sequence_truncate": (
        {"mismatch": "sequence", "mismatch_max": 2.0},
        {"use_vllm": True},
    ),
    "mismatch_sequence_mask": (
        {"mismatch": "sequence", "mismatch_mode": "mask", "mismatch_max": 2.0},
        {"use_vllm": True},
    ),
    "entropy_bonus": ({}, {"_entropy_bonus_enabled": True, "entropy_coef": 0.3}),
    "top_entropy": ({"top_entropy": 0.43}, {"top_entropy_quantile": 0.43}),
    "top_entropy_and_bonus": (
        {"top_entropy": 0.43},
        {"top_entropy_quantile": 0.43, "_entropy_bonus_enabled": True, "entropy_coef": 0.3},
    ),
}


def trl_rho(x: Tokens, mode: str, low: float, high: float) -> Tensor:
    """The importance ratio as TRL makes it inside `_generate_and_score_completions`."""
    assert x.old_logprobs_BT is not None and x.sampler_logprobs_BT is not None
    difference = torch.nan_to_num((x.old_logprobs_BT - x.sampler_logprobs_BT) * x.mask_BT, nan=0.0)
    if mode.startswith("sequence"):
        difference = difference.sum(dim=-1, keepdim=True)
    rho = torch.exp(difference)
    if mode.endswith("truncate"):
        return torch.clamp(rho, min=low, max=high)
    return rho.masked_fill((rho < low) | (rho > high), value=0.0)


def ours_and_trls(step: Step, o: Objective, dtype: torch.dtype, trl_settings: dict):
    """The two losses on the same leaves."""
    keep_BT = None
    x = step.cast(dtype)
    if o.top_entropy < 1:
        assert x.entropies_BT is not None
        entropies_BT = x.entropies_BT.detach()
        keep_BT = entropies_BT >= entropy_threshold(entropies_BT[x.mask_BT], o.top_entropy)
    step = Step(x).having(keep_BT=keep_BT)
    rho = None
    if trl_settings.get("use_vllm"):
        mode = f"{o.mismatch}_{o.mismatch_mode}"
        rho = trl_rho(step.tokens, mode, o.mismatch_min, o.mismatch_max)
    trainer = trl_trainer(**trl_settings)
    theirs = trl_loss(trainer, step.tokens, rho=rho)
    entropy_weight = trl_settings.get("entropy_coef", 0.0)
    ours, metrics = policy_loss(step.tokens, o, step.denominator, entropy_weight)
    return ours, theirs, step.tokens, metrics, trainer._metrics["train"]


def check(step: Step, o: Objective, trl_settings: dict) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-6)):
        ours, theirs, x, _, _ = ours_and_trls(step, o, dtype, trl_settings)
        assert ours.item() == pytest.approx(theirs.item(), rel=tolerance, abs=tolerance)
        assert theirs.item() != 0
        for got, want in zip(gradients(ours, x), gradients(theirs, x), strict=True):
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def step_for(axis: str, seed: int, by_token: bool = False) -> Step:
    # Without a sampler TRL measures off-policyness from the old log-probs, and so do we.
    step = random_step(seed, by_token=by_token)
    return step if "mismatch" in axis else step.without("sampler_logprobs_BT")


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("preset", PRESET_IN_TRL)
def test_preset_equals_trl_along_every_axis(preset, axis):
    ours, theirs = AXES[axis]
    o = objective(preset=preset, **ours)
    check(step_for(axis, seed=11), o, {**PRESET_IN_TRL[preset], **theirs})


@pytest.mark.parametrize("preset", PRESET_IN_TRL)
@pytest.mark.parametrize("seed", range(3))
def test_preset_equals_trl_on_other_draws_and_with_credit_by_token(preset, seed):
    o = objective(preset=preset)
    check(step_for("plain", seed=seed), o, PRESET_IN_TRL[preset])
    check(step_for("plain", seed=seed, by_token=True), o, PRESET_IN_TRL[preset])


@pytest.mark.parametrize("preset", PRESET_IN_TRL)
def test_preset_equals_trl_when_on_policy(preset):
    step = step_for("plain", seed=5).without("old_logprobs_BT")
    check(step, objective(preset=preset), PRESET_IN_TRL[preset])


@pytest.mark.parametrize("preset", ["grpo", "dapo", "dr_grpo", "luspo", "gspo"])
def test_two_sided_clipping_equals_trls_delta(preset):
    o = objective(preset=preset, clip_max=1.3)
    check(step_for("plain", seed=6), o, {**PRESET_IN_TRL[preset], "delta": 1.3})


def test_off_policy_mask_prefers_the_samplers_log_probs():
    trl_settings = {"off_policy_mask_threshold": 0.05}
    check(random_step(7), objective(off_policy_limit=0.05), trl_settings)


@pytest.mark.parametrize("preset", PRESET_IN_TRL)
def test_masked_truncated_answers_count_as_answers_but_not_as_tokens(preset):
    # TRL zeroes the whole mask row of an answer that was cut off.
    step = step_for("plain", seed=8)
    mask_BT = step.tokens.mask_BT.clone()
    mask_BT[1:3] = False
    masked = step.having(mask_BT=mask_BT)
    assert masked.denominator.answers == 6
    check(masked, objective(preset=preset), PRESET_IN_TRL[preset])


def rows(x: Tokens, at: slice) -> Tokens:
    return replace(x, **{k: v[at] for k, v in vars(x).items() if v is not None})


@pytest.mark.parametrize("preset", PRESET_IN_TRL)
def test_accumulation_over_two_micro_batches_equals_trls(preset):
    x = step_for("plain", seed=9).without("keep_BT").tokens
    settings = {**PRESET_IN_TRL[preset], "current_gradient_accumulation_steps": 2}
    trainer = trl_trainer(**settings, steps_per_generation=2)
    parts = [rows(x, slice(0, 3)), rows(x, slice(3, 6))]
    total = int(x.mask_BT.sum())
    theirs = sum(trl_loss(trainer, part, tokens_of_rollout=total) for part in parts)
    over = Denominator(answers=6, tokens=total, max_tokens=MAX_TOKENS, microbatches=2)
    ours = sum(policy_loss(part, objective(preset=preset), over)[0] for part in parts)
    assert isinstance(ours, Tensor) and isinstance(theirs, Tensor)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-10)
    torch.testing.assert_close(
        gradients(ours, x)[0], gradients(theirs, x)[0], rtol=1e-10, atol=1e-10
    )


def test_metrics_equal_trls():
    step = step_for("kl", seed=10)
    o = objective(kl_weight=0.2)
    _, _, _, ours, theirs = ours_and_trls(step, o, torch.float64, {"beta": 0.2})
    names = {
        "kl": "kl",
        "entropy": "entropy",
        "clip_low": "clip_ratio/low_mean",
        "clip_high": "clip_ratio/high_mean",
    }
    for name, trl_name in names.items():
        total, count = ours[name]
        assert (total / count).item() == pytest.approx(theirs[trl_name][0], abs=1e-7)
    assert theirs["clip_ratio/low_mean"][0] > 0 and theirs["clip_ratio/high_mean"][0] > 0


def test_mismatch_ratio_treats_a_log_prob_that_the_engine_could_not_tell_as_one():
    x = random_step(12).tokens
    old, sampler = x.old_logprobs_BT, x.sampler_logprobs_BT
    assert old is not None and sampler is not None
    sampler[1, 0] = torch.nan
    for level in ("token", "sequence"):
        for mode in ("truncate", "mask"):
            o = objective(mismatch=level, mismatch_mode=mode, mismatch_min=0, mismatch_max=2)
            ours = mismatch_ratio(old, sampler, x.mask_BT, o)
            torch.testing.assert_close(ours, trl_rho(x, f"{level}_{mode}", 0.0, 2.0))
            if level == "token":
                assert ours[1, 0] == 1


def test_adaptive_entropy_weight_follows_trls_controller_step_by_step():
    o = objective(
        entropy_target=0.8, entropy_delta=0.02, entropy_weight_max=0.05, entropy_weight=0.03
    )
    trainer = trl_trainer(
        use_adaptive_entropy=True,
        _entropy_bonus_enabled=True,
        entropy_coef=0.03,
        entropy_target=0.8,
        entropy_coef_delta=0.02,
        entropy_coef_max=0.05,
    )
    weight, entropy = o.entropy_weight, None
    seen = []
    for scale in (1.5, 0.3, 0.3, 0.3, 2.0, 2.0, 2.0, 2.0, 0.1):
        step = step_for("plain", seed=13).without("keep_BT")
        assert step.tokens.entropies_BT is not None
        entropies_BT = (step.tokens.entropies_BT.detach() * scale).requires_grad_()
        x = step.having(entropies_BT=entropies_BT).tokens
        applied = applied_entropy_weight(weight, entropy, o)
        ours, metrics = policy_loss(x, o, step.denominator, applied)
        theirs = trl_loss(trainer, x)
        assert ours.item() == pytest.approx(theirs.item(), abs=1e-10)
        total, count = metrics["entropy"]
        entropy = (total / count).item()
        weight = adapt_entropy_weight(weight, entropy, o)
        assert weight == pytest.approx(trainer.entropy_coef, abs=1e-15)
        seen.append(applied)
    assert len({round(value, 6) for value in seen}) >= 3, "the draw should exercise the controller"


# Where we differ on purpose.


def test_cispo_bound_is_its_own_setting_and_not_the_clips():
    # TRL reads CISPO's bound from epsilon_high, whose default 0.2 scales every weight down to at
    # most 0.2. Ours is cispo_max, 5.0 as in the paper.
    step = step_for("plain", seed=14).without("keep_BT")
    ours, theirs, _, _, _ = ours_and_trls(
        step, objective(preset="cispo"), torch.float64, {"loss_type": "cispo"}
    )
    bound = objective(preset="cispo", cispo_max=0.2)
    same, _ = policy_loss(step.tokens, bound, step.denominator)
    assert theirs.item() == pytest.approx(same.item(), abs=1e-10)
    x = step.tokens
    assert x.old_logprobs_BT is not None
    weights = (x.logprobs_BT - x.old_logprobs_BT).exp().clamp(max=5.0)
    corrected = -(weights * x.advantages_BT * x.logprobs_BT * x.mask_BT).sum() / x.mask_BT.sum()
    assert ours.item() == pytest.approx(corrected.item(), abs=1e-10)
    assert abs(ours.item() - theirs.item()) > 1e-3


def test_token_mean_divides_by_the_optimizer_steps_own_tokens():
    # A rollout split in two optimizer steps: TRL divides both by half the rollout's tokens, so a
    # token's weight is the same in both; ours is a true mean over each step's tokens.
    x = step_for("plain", seed=15).without("keep_BT").tokens
    total = int(x.mask_BT.sum())
    for at in (slice(0, 3), slice(3, 6)):
        part = rows(x, at)
        own = int(part.mask_BT.sum())
        trainer = trl_trainer(loss_type="dapo", epsilon_high=0.28, steps_per_generation=2)
        theirs = trl_loss(trainer, part, tokens_of_rollout=total)
        over = Denominator(answers=3, tokens=own, max_tokens=MAX_TOKENS)
        ours, _ = policy_loss(part, objective(preset="dapo"), over)
        assert own != total / 2
        assert ours.item() == pytest.approx(theirs.item() * (total / 2) / own, abs=1e-10)


def test_entropy_bonus_is_a_mean_over_the_step_not_over_each_micro_batch():
    x = step_for("plain", seed=16).without("keep_BT").tokens
    assert x.entropies_BT is not None
    parts = [rows(x, slice(0, 3)), rows(x, slice(3, 6))]
    settings = {"_entropy_bonus_enabled": True, "entropy_coef": 0.3}
    trainer = trl_trainer(current_gradient_accumulation_steps=2, **settings)
    theirs = sum(trl_loss(trainer, part).item() for part in parts)
    over = Denominator(answers=6, tokens=int(x.mask_BT.sum()), max_tokens=MAX_TOKENS)
    ours = sum(policy_loss(part, objective(), over, 0.3)[0].item() for part in parts)
    whole = trl_loss(trl_trainer(**settings), x).item()
    assert ours == pytest.approx(whole, abs=1e-10)
    assert abs(theirs - whole) > 1e-4


def test_luspo_with_kl_does_not_count_padding():
    # Older TRL summed the KL of padding into LUSPO; 1.16 masks it, and so do we: the loss does not
    # change with the width that answers are padded to.
    step = step_for("kl", seed=17).without("keep_BT")
    o = objective(preset="luspo", kl_weight=0.2)
    loss, _ = policy_loss(step.tokens, o, step.denominator)
    padding = {"mask_BT": 0.0, "ref_logprobs_BT": -1.0}
    wide = {
        name: torch.nn.functional.pad(value, (0, 4), value=padding.get(name, -3.0))
        for name, value in vars(step.tokens).items()
        if value is not None and value.shape[1] > 1
    }
    x = replace(step.tokens, **wide)
    padded, _ = policy_loss(x, o, step.denominator)
    assert padded.item() == pytest.approx(loss.item(), abs=1e-12)
    theirs = trl_loss(trl_trainer(**PRESET_IN_TRL["luspo"], beta=0.2), x)
    assert theirs.item() == pytest.approx(loss.item(), abs=1e-10)
