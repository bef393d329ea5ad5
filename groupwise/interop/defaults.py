"""What `groupwise import` knows of TRL 1.16: its defaults, and fields without a counterpart."""

from typing import Any

# TRL 1.16's own defaults for what we read. Others are ours and theirs alike, or do not matter.
DEFAULTS: dict[str, Any] = {
    "seed": 42,
    "num_generations": 8,
    "num_iterations": 1,
    "max_completion_length": 512,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "importance_sampling_level": "token",
    "scale_rewards": "group",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "beta": 0.0,
    "use_bias_correction_kl": True,
    "mask_truncated_completions": False,
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "entropy_coef": 0.0,
    "loss_type": "dapo",
    "multi_objective_aggregation": "sum_then_normalize",
    "learning_rate": 1e-6,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": True,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "max_steps": -1,
    "save_total_limit": None,
}

SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
}
# Fields that say where things are written or shown, or what ours does by itself: nothing is lost.
NOTHING_LOST = (
    "output_dir", "overwrite_output_dir", "run_name", "logging_dir", "logging_steps",
    "logging_strategy", "logging_first_step", "log_completions", "num_completions_to_print",
    "log_level", "disable_tqdm", "remove_unused_columns", "shuffle_dataset", "do_train",
    "save_strategy", "model_init_kwargs", "attn_implementation", "dtype", "torch_dtype",
    "dataloader_pin_memory", "pad_to_multiple_of", "ds3_gather_for_generation", "use_cpu",
    "gradient_checkpointing_kwargs", "reward_weights", "use_peft",
)  # fmt: skip
HINTS = {
    "use_vllm": "answers come from the native engine",
    "num_train_epochs": "set steps= by hand: problems x epochs / batch.prompts",
    "eval_strategy": "set eval.every= by hand",
    "eval_steps": "set eval.every= by hand",
    "push_to_hub": "groupwise export RUN --push REPO",
    "deepspeed": "see docs/adapters.md for what saves memory",
}
