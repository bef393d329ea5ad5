"""What `groupwise import` and `groupwise.trl` know of TRL 1.16's fields: those that are read as one
value each, those that change nothing here, and why others have no counterpart."""

from typing import Any

from groupwise.interop.grpo_fields import ALL

READ = (
    "seed", "num_generations", "num_iterations", "max_completion_length", "temperature", "top_p",
    "top_k", "min_p", "repetition_penalty", "importance_sampling_level", "scale_rewards", "epsilon",
    "epsilon_high", "delta", "sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos",
    "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "beta", "use_bias_correction_kl",
    "mask_truncated_completions", "top_entropy_quantile", "off_policy_mask_threshold",
    "entropy_coef", "use_adaptive_entropy", "entropy_target", "entropy_coef_delta",
    "entropy_coef_max", "loss_type", "multi_objective_aggregation", "learning_rate", "adam_beta1",
    "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm", "lr_scheduler_type",
    "warmup_steps", "optim", "gradient_checkpointing", "per_device_train_batch_size",
    "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size", "max_steps",
    "save_steps", "save_total_limit", "eval_strategy", "eval_steps", "use_vllm", "vllm_mode",
    "vllm_gpu_memory_utilization", "vllm_enable_sleep_mode", "vllm_server_base_url",
    "vllm_server_host", "vllm_server_port", "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_min",
    "vllm_importance_sampling_clip_max", "sync_ref_model", "ref_model_mixup_alpha",
    "ref_model_sync_steps",
)  # fmt: skip
DEFAULTS: dict[str, Any] = {name: ALL[name] for name in READ}
"""The fields that must be text, a number, true, false or null."""

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
    "log_unique_prompts", "log_multimodal", "log_level", "log_level_replica", "log_on_each_node",
    "logging_nan_inf_filter", "include_num_input_tokens_seen", "disable_tqdm",
    "remove_unused_columns", "shuffle_dataset", "do_train", "do_eval", "do_predict",
    "save_strategy", "save_only_model", "save_on_each_node", "model_init_kwargs",
    "attn_implementation", "dtype",
    "torch_dtype", "pad_to_multiple_of", "ds3_gather_for_generation", "use_cpu", "use_cache",
    "gradient_checkpointing_kwargs", "reward_weights", "use_peft", "cache_implementation",
    "use_transformers_continuous_batching", "use_transformers_paged", "torch_empty_cache_steps",
    "tf32", "average_tokens_across_devices", "skip_memory_metrics", "local_rank", "project",
    "eval_do_concat_batches", "eval_accumulation_steps", "eval_use_gather_object",
    "prediction_loss_only", "per_device_eval_batch_size", "length_column_name", "vllm_group_port",
    "vllm_server_timeout", "vllm_max_model_length", "resume_from_checkpoint", "ddp_timeout",
    "dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory",
    "dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_in_order",
    "dataloader_multiprocessing_context", "ddp_find_unused_parameters", "ddp_bucket_cap_mb",
    "ddp_broadcast_buffers", "ddp_static_graph", "ddp_backend",
)  # fmt: skip
HINTS = {
    "num_train_epochs": "set steps= by hand: problems x epochs / batch.prompts",
    "push_to_hub": "groupwise export RUN --push REPO",
    "deepspeed": "see docs/distributed.md for what shards a model",
    "fsdp": "see docs/distributed.md for what shards a model",
    "fsdp_config": "see docs/distributed.md for what shards a model",
    "parallelism_config": "see docs/distributed.md for what shards a model",
    "use_liger_kernel": "log-probs are computed in chunks already, without whole logits",
    "liger_kernel_config": "log-probs are computed in chunks already, without whole logits",
    "router_aux_loss_coef": "the load-balancing loss of mixture-of-experts models is not added",
    "vllm_structured_outputs_regex": "answers cannot be held to a pattern",
    "vllm_model_impl": "vLLM runs its own implementation of a model",
    "vllm_tensor_parallel_size": "vLLM samples on one device in each process",
    "label_smoothing_factor": "it has no meaning in GRPO's loss",
    "neftune_noise_alpha": "embeddings get no noise",
    "train_sampling_strategy": "problems are drawn in shuffled passes",
    "entropy_coef_min": "the adaptive weight's lower bound is 0",
    "torch_compile_backend": "torch.compile is used with its default backend",
    "torch_compile_mode": "torch.compile is used in its default mode",
    "data_seed": "every random draw derives from seed",
    "auto_find_batch_size": "batches are cut to fit the memory without changing what is learned",
    "log_completions_hub_repo": "answers are stored in the run's folder, under rollouts/",
    "transformers_continuous_batching_config": "the native engine has settings of its own",
    "optim_target_modules": "optimizers that treat layers differently are not known",
    "generation_kwargs": "only the sampling settings that GRPOConfig has, and stop_strings",
    "max_tool_calling_iterations": "set environment.max_turns= to one more than it",
    "eval_on_start": "a run is always evaluated before its first step",
}
"""Why a field has no counterpart in a recipe, or what does its work."""
