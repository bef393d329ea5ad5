"""The fields of TRL 1.16's GRPOConfig and their defaults: what `groupwise import` reads, and what
`groupwise.trl.GRPOConfig` has. TRL's documentation says what each is for; docs/trl.md says which
of them groupwise follows."""

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass
class GRPOFields:
    """What GRPOConfig adds to transformers' TrainingArguments, or sets another default for."""

    learning_rate: float = 1e-6
    logging_steps: float = 10
    gradient_checkpointing: bool = True
    bf16: bool | None = None
    remove_unused_columns: bool | None = False

    model_init_kwargs: dict[str, Any] | str | None = None
    trust_remote_code: bool = False
    router_aux_loss_coef: float | None = None
    disable_dropout: bool = False
    cast_lm_head_to_fp32: bool = False

    num_generations: int = 8
    num_generations_eval: int | None = None
    max_completion_length: int | None = 512
    ds3_gather_for_generation: bool = True
    shuffle_dataset: bool | None = True
    pad_to_multiple_of: int | str | None = "auto"

    generation_batch_size: int | None = None
    steps_per_generation: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    generation_kwargs: dict[str, Any] | str | None = None
    chat_template_kwargs: dict[str, Any] | str | None = None
    repetition_penalty: float = 1.0
    cache_implementation: str | None = None
    use_transformers_continuous_batching: bool = False
    transformers_continuous_batching_config: dict[str, Any] | str | None = None
    use_transformers_paged: bool = False

    use_vllm: bool = False
    vllm_mode: str = "colocate"
    vllm_model_impl: str = "vllm"
    vllm_enable_sleep_mode: bool = False
    vllm_structured_outputs_regex: str | None = None
    vllm_server_base_url: str | None = None
    vllm_server_host: str = "0.0.0.0"
    vllm_server_port: int = 8000
    vllm_server_timeout: float = 240.0
    vllm_group_port: int = 51216
    vllm_gpu_memory_utilization: float = 0.3
    vllm_max_model_length: int | None = None
    vllm_tensor_parallel_size: int = 1

    beta: float = 0.0
    num_iterations: int = 1
    epsilon: float = 0.2
    delta: float | None = None
    epsilon_high: float | None = None
    sapo_temperature_neg: float = 1.05
    sapo_temperature_pos: float = 1.0
    vespo_k_pos: float = 2.0
    vespo_lambda_pos: float = 3.0
    vespo_k_neg: float = 3.0
    vespo_lambda_neg: float = 2.0
    importance_sampling_level: str = "token"
    reward_weights: list[float] | None = None
    multi_objective_aggregation: str = "sum_then_normalize"
    scale_rewards: str = "group"
    loss_type: str = "dapo"
    mask_truncated_completions: bool = False
    sync_ref_model: bool = False
    ref_model_mixup_alpha: float = 0.6
    ref_model_sync_steps: int = 512
    top_entropy_quantile: float = 1.0
    entropy_coef: float = 0.0
    use_adaptive_entropy: bool = False
    entropy_coef_min: float = 0.0
    entropy_coef_max: float = 1.0
    entropy_coef_delta: float = 0.005
    entropy_target: float = 0.2
    max_tool_calling_iterations: int | None = None
    vllm_importance_sampling_correction: bool = True
    vllm_importance_sampling_mode: str = "sequence_mask"
    vllm_importance_sampling_clip_max: float | None = 3.0
    vllm_importance_sampling_clip_min: float | None = None
    vllm_importance_sampling_cap: float | None = None
    off_policy_mask_threshold: float | None = None
    use_bias_correction_kl: bool = True

    log_completions: bool = False
    log_multimodal: bool = True
    num_completions_to_print: int | None = None
    log_unique_prompts: bool = False
    log_completions_hub_repo: str | None = None


TRAINING_ARGUMENTS: dict[str, Any] = {
    "output_dir": None, "per_device_train_batch_size": 8, "num_train_epochs": 3.0, "max_steps": -1,
    "lr_scheduler_type": "linear", "lr_scheduler_kwargs": None, "warmup_steps": 0,
    "optim": "adamw_torch_fused", "optim_args": None, "weight_decay": 0.0, "adam_beta1": 0.9,
    "adam_beta2": 0.999, "adam_epsilon": 1e-08, "optim_target_modules": None,
    "gradient_accumulation_steps": 1, "average_tokens_across_devices": True, "max_grad_norm": 1.0,
    "label_smoothing_factor": 0.0, "fp16": False, "bf16_full_eval": False, "fp16_full_eval": False,
    "tf32": None, "gradient_checkpointing_kwargs": None, "torch_compile": False,
    "torch_compile_backend": None, "torch_compile_mode": None, "use_liger_kernel": False,
    "liger_kernel_config": None, "use_cache": False, "neftune_noise_alpha": None,
    "torch_empty_cache_steps": None, "auto_find_batch_size": False, "logging_strategy": "steps",
    "logging_first_step": False, "log_on_each_node": True, "logging_nan_inf_filter": True,
    "include_num_input_tokens_seen": "no", "log_level": "passive", "log_level_replica": "warning",
    "disable_tqdm": None, "report_to": "none", "run_name": None, "project": "huggingface",
    "trackio_space_id": None, "trackio_bucket_id": None, "trackio_static_space_id": None,
    "eval_strategy": "no", "eval_steps": None, "eval_delay": 0, "per_device_eval_batch_size": 8,
    "prediction_loss_only": False, "eval_on_start": False, "eval_do_concat_batches": True,
    "eval_use_gather_object": False, "eval_accumulation_steps": None, "include_for_metrics": [],
    "batch_eval_metrics": False, "save_only_model": False, "save_strategy": "steps",
    "save_steps": 500, "save_on_each_node": False, "save_total_limit": None,
    "enable_jit_checkpoint": False, "push_to_hub": False, "hub_token": None,
    "hub_private_repo": None, "hub_model_id": None, "hub_strategy": "every_save",
    "hub_always_push": False, "hub_revision": None, "load_best_model_at_end": False,
    "metric_for_best_model": None, "greater_is_better": None, "ignore_data_skip": False,
    "restore_callback_states_from_checkpoint": False, "full_determinism": False, "seed": 42,
    "data_seed": None, "use_cpu": False, "accelerator_config": None, "parallelism_config": None,
    "dataloader_drop_last": False, "dataloader_num_workers": 0, "dataloader_pin_memory": True,
    "dataloader_persistent_workers": False, "dataloader_prefetch_factor": None,
    "dataloader_multiprocessing_context": None, "dataloader_in_order": True, "label_names": None,
    "train_sampling_strategy": "random", "length_column_name": "length",
    "ddp_find_unused_parameters": None, "ddp_bucket_cap_mb": None, "ddp_broadcast_buffers": None,
    "ddp_static_graph": None, "ddp_backend": None, "ddp_timeout": 1800, "fsdp": None,
    "fsdp_config": None, "deepspeed": None, "debug": "", "skip_memory_metrics": True,
    "do_train": False, "do_eval": False, "do_predict": False, "resume_from_checkpoint": None,
    "local_rank": -1,
}  # fmt: skip
"""transformers 5.19's TrainingArguments, less what GRPOFields has."""

ALL: dict[str, Any] = TRAINING_ARGUMENTS | {
    field.name: field.default for field in dataclasses.fields(GRPOFields)
}
"""Every field of GRPOConfig, and its default."""

COMMAND_LINE = (
    "model_name_or_path", "model_revision", "dtype", "torch_dtype", "attn_implementation",
    "use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules",
    "lora_target_parameters", "lora_modules_to_save", "lora_task_type", "use_rslora", "use_dora",
    "load_in_8bit", "load_in_4bit", "bnb_4bit_quant_type", "use_bnb_nested_quant",
    "bnb_4bit_quant_storage", "dataset_name", "dataset_config", "dataset_train_split",
    "dataset_test_split", "dataset_streaming", "ignore_bias_buffers", "reward_funcs",
    "reward_model_name_or_path", "max_prompt_length", "warmup_ratio", "logging_dir",
    "overwrite_output_dir",
)  # fmt: skip
"""What TRL's command line adds (ModelConfig, ScriptArguments), and older versions had."""
