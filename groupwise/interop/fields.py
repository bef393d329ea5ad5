"""Our settings as those of TRL 1.16's GRPOConfig, and what has no counterpart there, in words.

`DIRECT` holds the settings that differ in name alone; `groupwise import` reads the same table the
other way. Whatever else a setting needs is a function here: TRL counts answers and optimizer steps
where we count problems and rollouts, and says ratio, surrogate and aggregation in one `loss_type`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from groupwise.config import Config, RolloutSettings
from groupwise.config.flat import leaves
from groupwise.interop.trl_surrogates import FIELDS, LOSS_TYPES
from groupwise.objective.objective import Objective
from groupwise.secrets import masked_settings

DIRECT = {
    "seed": "seed",
    "batch.group_size": "num_generations",
    "batch.epochs": "num_iterations",
    "rollout.max_completion_tokens": "max_completion_length",
    "rollout.temperature": "temperature",
    "rollout.top_p": "top_p",
    "rollout.top_k": "top_k",
    "rollout.repetition_penalty": "repetition_penalty",
    "algorithm.ratio": "importance_sampling_level",
    "algorithm.kl_weight": "beta",
    "algorithm.mask_truncated": "mask_truncated_completions",
    "algorithm.top_entropy": "top_entropy_quantile",
    "algorithm.off_policy_limit": "off_policy_mask_threshold",
    "algorithm.entropy_weight": "entropy_coef",
    "optimizer.lr": "learning_rate",
    "optimizer.eps": "adam_epsilon",
    "optimizer.weight_decay": "weight_decay",
    "optimizer.clip_norm": "max_grad_norm",
    "checkpoint.keep": "save_total_limit",
}
"""Our setting -> TRL's field of the same meaning."""

OPTIMIZERS = {"adamw": "adamw_torch", "adamw_8bit": "adamw_bnb_8bit"}


@dataclass(frozen=True)
class Fields:
    """GRPOConfig's arguments, and one sentence for each setting that they cannot express."""

    values: dict[str, Any]
    lost: tuple[str, ...]


def trl_fields(config: Config) -> Fields:
    """Every argument that our settings decide, also where it is TRL's default."""
    settings = leaves(config.model_dump(mode="json"))
    values = {theirs: settings[ours] for ours, theirs in DIRECT.items()}
    updates = _updates(config)
    values |= _batch(config, updates)
    values |= _objective(config.algorithm, config.rollout)
    values |= _schedule(config, updates)
    values |= _reference(config, updates)
    values |= {
        "gradient_checkpointing": bool(config.gradient_checkpointing),
        "shuffle_dataset": False,
        "logging_steps": updates,
        "save_strategy": "steps" if config.checkpoint.every else "no",
        "save_steps": max(config.checkpoint.every, 1) * updates,
        "report_to": _trackers(config),
    }
    if config.precision != "auto":
        values |= {"bf16": config.precision == "bf16", "fp16": config.precision == "fp16"}
    if config.device == "cpu":
        values["use_cpu"] = True
    lost = (*_lost_of_the_run(config), *_lost_of_the_objective(config.algorithm))
    return Fields(values, lost)


def _batch(config: Config, updates: int) -> dict[str, Any]:
    """TRL counts answers: per device, times accumulation, times optimizer steps a rollout."""
    answers = config.batch.prompts * config.batch.group_size
    in_update = answers // _minibatches(config)
    longest = config.rollout.max_prompt_tokens + config.rollout.max_completion_tokens
    fitting = max(config.batch.tokens_per_microbatch // longest, 1)
    at_once = _largest_divisor(in_update, fitting)
    return {
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": in_update // at_once,
        "steps_per_generation": answers // at_once,
        "max_steps": config.steps * updates,
    }


def _minibatches(config: Config) -> int:
    """Ours may be uneven; TRL's may not, so it gets the next smaller number that divides."""
    answers = config.batch.prompts * config.batch.group_size
    return _largest_divisor(answers, config.batch.minibatches)


def _largest_divisor(number: int, limit: int) -> int:
    return max(n for n in range(1, min(number, limit) + 1) if number % n == 0)


def _updates(config: Config) -> int:
    """Optimizer steps a rollout."""
    return _minibatches(config) * config.batch.epochs


def _objective(objective: Objective, rollout: RolloutSettings) -> dict[str, Any]:
    values: dict[str, Any] = {
        "min_p": rollout.min_p or None,
        "loss_type": _loss_type(objective),
        "scale_rewards": getattr(objective.advantage, "scale", "group"),
        "use_bias_correction_kl": objective.kl_unbiased,
        "multi_objective_aggregation": "normalize_then_sum"
        if objective.advantage.kind == "gdpo"
        else "sum_then_normalize",
        "vllm_importance_sampling_correction": objective.mismatch != "none",
    }
    surrogate = objective.surrogate
    fields = FIELDS.get(surrogate.kind, {})
    values |= {theirs: getattr(surrogate, ours) for ours, theirs in fields.items()}
    if objective.entropy_target is not None:
        values |= {
            "use_adaptive_entropy": True,
            "entropy_target": objective.entropy_target,
            "entropy_coef_delta": objective.entropy_delta,
            "entropy_coef_max": objective.entropy_weight_max,
        }
    if objective.mismatch != "none":
        values |= {
            "vllm_importance_sampling_mode": f"{objective.mismatch}_{objective.mismatch_mode}",
            "vllm_importance_sampling_clip_min": objective.mismatch_min or None,
            "vllm_importance_sampling_clip_max": objective.mismatch_max,
        }
    return values


def _loss_type(objective: Objective) -> str:
    """TRL's, or where it has none, the clipped loss with the same aggregation."""
    exact = LOSS_TYPES.get((objective.surrogate.kind, objective.aggregate))
    return exact or LOSS_TYPES["clip", objective.aggregate]


def _schedule(config: Config, updates: int) -> dict[str, Any]:
    settings = config.optimizer
    warmup = settings.warmup if settings.warmup >= 1 else settings.warmup * config.steps
    falls = {"constant": "constant_with_warmup" if warmup else "constant"}
    return {
        "optim": OPTIMIZERS[settings.kind],
        "adam_beta1": settings.betas[0],
        "adam_beta2": settings.betas[1],
        "lr_scheduler_type": falls.get(settings.schedule, settings.schedule),
        "warmup_steps": round(warmup * updates),
    }


def _reference(config: Config, updates: int) -> dict[str, Any]:
    settings = config.reference
    if not config.algorithm.needs_reference or settings.kind not in ("copied", "mixed"):
        return {}
    return {
        "sync_ref_model": True,
        "ref_model_mixup_alpha": 1.0 if settings.kind == "copied" else settings.alpha,
        "ref_model_sync_steps": settings.every * updates,
    }


def _trackers(config: Config) -> list[str] | str:
    names = ("tensorboard", "trackio", "wandb")
    return [name for name in names if getattr(config.tracking, name)] or "none"


def _lost_of_the_run(config: Config) -> Iterator[str]:
    rollout, batch = config.rollout, config.batch
    if config.gradient_checkpointing == "offload":
        yield "gradient_checkpointing=offload: on, but layer inputs stay on the GPU"
    if _minibatches(config) != batch.minibatches:
        yield (
            f"batch.minibatches={batch.minibatches}: {batch.prompts} x {batch.group_size} answers "
            f"do not divide evenly, so {_minibatches(config)}"
        )
    elif batch.minibatches > 1:
        yield (
            f"batch.minibatches={batch.minibatches}: TRL splits answers and not groups, and "
            "divides token means by the whole rollout's tokens"
        )
    if rollout.stop:
        yield f"rollout.stop={list(rollout.stop)}: only the model's own end tokens end it"
    if rollout.temperature_spread is not None:
        yield f"rollout.temperature_spread={list(rollout.temperature_spread)}: temperature alone"
    if rollout.max_draws > 1:
        yield f"rollout.max_draws={rollout.max_draws:g}: groups without spread are not replaced"
    if config.optimizer.offload:
        yield "optimizer.offload: weights and moments stay on the GPU"
    if config.optimizer.warmup:
        yield "optimizer.warmup: TRL's first step has learning rate 0, ours the first part of it"
    if config.reference.kind in ("server", "process") and config.algorithm.needs_reference:
        yield f"reference.kind={config.reference.kind}: the reference is loaded beside the policy"
    if config.place.kind != "here" or config.timing.kind != "in_turn":
        yield "place, timing: answers are sampled by the trainer, and by its present weights"
    if config.compile == "all":
        yield "compile=all: nothing is compiled"
    for reward in config.rewards:
        for name in masked_settings(reward.options, f"{reward.name}: options"):
            yield f"{name}: a run folder keeps no secrets, so write it into the script"


def _lost_of_the_objective(objective: Objective) -> Iterator[str]:
    kind = objective.surrogate.kind
    if (kind, objective.aggregate) not in LOSS_TYPES:
        same = "; with one update a rollout, its gradient is the same"
        yield (
            f"algorithm.surrogate={kind} with aggregate={objective.aggregate}: "
            f"loss_type {_loss_type(objective)} is used instead"
            f"{same if kind == 'reinforce' else ''}"
        )
    if _loss_type(objective) == "luspo" and objective.ratio != "sequence":
        yield "algorithm.ratio=token: TRL warns that luspo is meant for ratios of sequences"
    if getattr(objective.advantage, "baseline", "mean") == "leave_one_out":
        yield "algorithm.baseline=leave_one_out: the group's mean (TRL has an RLOOTrainer for it)"
    if objective.kl_weight and objective.kl_estimator != "k3":
        yield f"algorithm.kl_estimator={objective.kl_estimator}: k3"
    if objective.kl_weight and objective.kl_in == "reward":
        yield "algorithm.kl_in=reward: KL is in the loss"
    if objective.mismatch != "none":
        yield f"algorithm.mismatch={objective.mismatch}: counts only with use_vllm=True"
