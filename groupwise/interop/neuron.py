"""`groupwise export --to neuron`: the same script for AWS Trainium, with optimum-neuron.

NeuronGRPOTrainer is experimental: it lives on the branch `grpo` of optimum-neuron (read at commit
936157d), is built on TRL 0.24.0, and takes its answers from a vLLM server. So fewer settings can
be said than with today's TRL; those that cannot are listed at the top of the script. Nobody ran
such a script here, for want of the hardware: it is checked as Python and against that branch's
fields, no more.
"""

import pathlib
from collections.abc import Iterator

from groupwise.config import Config
from groupwise.errors import ConfigError
from groupwise.interop.fields import Fields, trl_fields
from groupwise.interop.script import Target, reward_lines, run_config, script_text, write_export
from groupwise.reward_models.reward import PREFIX
from groupwise.tasks.catalog import build_task

BRANCH = "git+https://github.com/huggingface/optimum-neuron@grpo"
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")

# Fields of today's GRPOConfig that TRL 0.24.0's and NeuronTrainingArguments do not have.
UNKNOWN_THERE = (
    "sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos", "vespo_lambda_pos",
    "vespo_k_neg", "vespo_lambda_neg", "off_policy_mask_threshold", "entropy_coef",
    "use_adaptive_entropy", "entropy_target", "entropy_coef_delta", "entropy_coef_max",
    "use_bias_correction_kl", "multi_objective_aggregation", "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max", "fp16", "use_cpu",
)  # fmt: skip
TARGET = Target(
    "NeuronGRPOTrainer", "optimum.neuron", "NeuronGRPOConfig", "NeuronGRPOTrainer",
    "neuron-output", on_gpu=False,
)  # fmt: skip


def export_neuron(
    run: str, out: pathlib.Path, tensor_parallel: int, *, trust_code: bool = False
) -> tuple[str, ...]:
    """Write `out` and its .jsonl; returns what cannot be expressed there."""
    config = run_config(run, trust_code=trust_code)
    fields = neuron_fields(config, tensor_parallel)
    write_export(config, out, neuron_script(config, fields, out.with_suffix(".jsonl").name))
    return fields.lost


def neuron_fields(config: Config, tensor_parallel: int) -> Fields:
    """NeuronGRPOConfig's arguments: TRL's that it knows, and Trainium's own."""
    there = trl_fields(config)
    values = {name: value for name, value in there.values.items() if name not in UNKNOWN_THERE}
    surrogate = config.algorithm.surrogate
    if values["loss_type"] not in LOSS_TYPES:
        values |= {"loss_type": "grpo", "epsilon_high": getattr(surrogate, "clip_high", 0.2)}
    values |= {
        "top_k": config.rollout.top_k or None,
        "max_prompt_length": config.rollout.max_prompt_tokens,
        "optim": "adamw_torch",
        "bf16": True,
        "tensor_parallel_size": tensor_parallel,
        "zero_1": True,
        "use_vllm": True,
        "vllm_mode": "server",
        "experimental": True,
    }
    if config.algorithm.mismatch != "none":
        values["vllm_importance_sampling_cap"] = config.algorithm.mismatch_max
    lost = [line for line in there.lost if not line.startswith("algorithm.mismatch=")]
    return Fields(values, (*lost, *_lost(config, there.values["loss_type"])))


def _lost(config: Config, loss_type: str) -> Iterator[str]:
    objective = config.algorithm
    if loss_type not in LOSS_TYPES:
        yield f"loss_type {loss_type}: grpo stands in its place"
    if objective.uses_entropy:
        yield "algorithm.entropy_*: no entropy bonus"
    if objective.kl_unbiased:
        yield "algorithm.kl_unbiased: KL without the ratio in front"
    if objective.advantage.kind == "gdpo":
        yield "algorithm.advantage=gdpo: rewards are summed before they are normalised"
    if objective.off_policy_limit is not None:
        yield "algorithm.off_policy_limit: no answer is dropped"
    if objective.mismatch != "none" and (objective.mismatch, objective.mismatch_mode) != (
        "token",
        "truncate",
    ):
        yield f"algorithm.mismatch={objective.mismatch}_{objective.mismatch_mode}: token_truncate"
    if config.precision in ("fp16", "fp32"):
        yield f"precision={config.precision}: bf16, which Trainium computes in"
    if config.quantization is not None:
        yield f"quantization={config.quantization}: weights are held in bf16"
    if config.optimizer.kind != "adamw":
        yield f"optimizer.kind={config.optimizer.kind}: adamw, its state sharded by zero_1"
    if config.rollout.overlong_buffer:
        yield "rollout.overlong_buffer: no soft penalty on length"


def neuron_script(config: Config, fields: Fields, dataset: str) -> str:
    rewards = reward_lines(config, build_task(config.task))
    learned = [name for name, source, _, _ in rewards if source.startswith(PREFIX)]
    if learned:
        raise ConfigError(
            f"reward {learned[0]!r} is a model, and Trainium cannot run it: score by functions, or "
            "export with --to trl"
        )
    weights = [weight for _, _, weight, _ in rewards]
    values = {**fields.values, "reward_weights": weights}
    arguments = {name: repr(value) for name, value in values.items()}
    head = (
        f"{config.model} on {config.task.kind} with optimum-neuron, as groupwise trained.",
        f"pip install '{BRANCH}' trl==0.24.0 groupwise (groupwise for its rewards)",
        "First start a vLLM server for the same model; then, on the Trainium instance:",
        f"torchrun --nproc_per_node CORES {pathlib.PurePath(dataset).stem}.py",
        "per_device_train_batch_size is for one data-parallel worker: with more than "
        "tensor_parallel_size cores, divide steps_per_generation and "
        "gradient_accumulation_steps by how many workers there are.",
        "optimum-neuron trains Llama, Granite and Qwen3 models.",
        "This script was written without a Trainium device to try it on.",
    )
    return script_text(TARGET, config, head, fields.lost, arguments, rewards, dataset)
