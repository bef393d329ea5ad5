"""`groupwise export --to neuron`: the same script for AWS Trainium, with optimum-neuron.

NeuronGRPOTrainer is experimental: it lives on the branch `grpo` of optimum-neuron (read at commit
936157d), is built on TRL 0.24.0, and takes its answers from a vLLM server. So fewer settings can
be said than with today's TRL; those that cannot are listed at the top of the script. Nobody ran
such a script here, for want of the hardware: it is checked as Python and against that branch's
fields, no more.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

from groupwise.config import Config
from groupwise.errors import ConfigError
from groupwise.interop.fields import Fields, trl_fields
from groupwise.interop.trl import (
    comments,
    lora_lines,
    lost_lines,
    own_lines,
    reward_lines,
    run_config,
    write_dataset,
    write_text,
)
from groupwise.reward_models.reward import PREFIX
from groupwise.tasks.catalog import build_task

BRANCH = "git+https://github.com/huggingface/optimum-neuron@grpo"
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")

# Fields of today's GRPOConfig that TRL 0.24.0's and NeuronTrainingArguments do not have.
UNKNOWN_THERE = (
    "sapo_temperature_pos",
    "sapo_temperature_neg",
    "vespo_k_pos",
    "vespo_lambda_pos",
    "vespo_k_neg",
    "vespo_lambda_neg",
    "off_policy_mask_threshold",
    "entropy_coef",
    "use_adaptive_entropy",
    "entropy_target",
    "entropy_coef_delta",
    "entropy_coef_max",
    "use_bias_correction_kl",
    "multi_objective_aggregation",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_min",
    "vllm_importance_sampling_clip_max",
    "fp16",
    "use_cpu",
)


def export_neuron(
    run: str, out: pathlib.Path, tensor_parallel: int, *, trust_code: bool = False
) -> tuple[str, ...]:
    """Write `out` and its .jsonl; returns what cannot be expressed there."""
    config = run_config(run, trust_code=trust_code)
    fields = neuron_fields(config, tensor_parallel)
    script = neuron_script(config, fields, out.with_suffix(".jsonl").name)
    write_dataset(config, out.with_suffix(".jsonl"))
    write_text(out, script)
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
    learned = [name for name, place, _, _ in rewards if place.startswith(PREFIX)]
    if learned:
        raise ConfigError(
            f"reward {learned[0]!r} is a model, and Trainium cannot run it: score by functions, or "
            "export with --to trl"
        )
    arguments = {**fields.values, "reward_weights": [weight for _, _, weight, _ in rewards]}
    return "\n".join(
        [
            *comments(
                f"{config.model} on {config.task.kind} with optimum-neuron, as groupwise trained.",
                f"pip install '{BRANCH}' trl==0.24.0 groupwise (groupwise for its rewards)",
                "First start a vLLM server for the same model; then, on the Trainium instance:",
                f"torchrun --nproc_per_node CORES {pathlib.PurePath(dataset).stem}.py",
                "per_device_train_batch_size is for one data-parallel worker: with more than "
                "tensor_parallel_size cores, divide steps_per_generation and "
                "gradient_accumulation_steps by how many workers there are.",
                "optimum-neuron trains Llama, Granite and Qwen3 models.",
                "This script was written without a Trainium device to try it on.",
                *lost_lines(fields.lost, "NeuronGRPOTrainer"),
            ),
            "",
            "import pathlib",
            "",
            "from datasets import load_dataset",
            "from optimum.neuron import NeuronGRPOConfig, NeuronGRPOTrainer",
            *(["from peft import LoraConfig"] if config.adapter else []),
            "",
            *own_lines(config, rewards),
            "def arguments() -> NeuronGRPOConfig:",
            "    return NeuronGRPOConfig(",
            '        output_dir=str(HERE / "neuron-output"),',
            *(f"        {name}={value!r}," for name, value in arguments.items()),
            "    )",
            "",
            "",
            "def trainer() -> NeuronGRPOTrainer:",
            *_body(config, dataset),
            "",
            "",
            'if __name__ == "__main__":',
            "    training = trainer()",
            "    training.train()",
            '    training.save_model(str(HERE / "neuron-output" / "model"))',
            "",
        ]
    )


def _body(config: Config, dataset: str) -> list[str]:
    options: dict[str, Any] = {
        "timeout": config.reward_timeout,
        "on_error": config.on_reward_error,
    }
    return [
        f"    options = {options!r}",
        "    rewards = [trl_reward(*reward, **options) for reward in REWARDS]",
        f"    data = load_dataset('json', data_files=str(HERE / {dataset!r}), split='train')",
        "    return NeuronGRPOTrainer(",
        "        model=MODEL,",
        "        reward_funcs=rewards,",
        "        args=arguments(),",
        "        train_dataset=data,",
        *lora_lines(config),
        "    )",
    ]
