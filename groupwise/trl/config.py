"""GRPOConfig: TRL's fields and defaults on transformers' TrainingArguments, checked as TRL does."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import TrainingArguments

from groupwise.errors import ConfigError
from groupwise.interop.grpo_fields import GRPOFields

DICTIONARIES = (
    "groupwise",
    "model_init_kwargs",
    "generation_kwargs",
    "chat_template_kwargs",
    "transformers_continuous_batching_config",
)


def as_dict(value: Any) -> dict[str, Any]:
    """A field that may hold a mapping."""
    return dict(value) if isinstance(value, Mapping) else {}


@dataclass
class GRPOConfig(GRPOFields, TrainingArguments):  # pyright: ignore[reportIncompatibleVariableOverride]
    """GRPOConfig(output_dir="out", learning_rate=1e-6, num_generations=8)

    `bf16` is left open by default: bf16 on a GPU, fp32 on a CPU.
    """

    groupwise: dict[str, Any] | str | None = None
    """Settings of groupwise's own, for what TRL has no field: {"engine.max_batch": 64}."""

    def __post_init__(self) -> None:
        for name in DICTIONARIES:  # a command line gives them as text
            value = getattr(self, name)
            if isinstance(value, str):
                setattr(self, name, json.loads(value))
        super().__post_init__()
        scales: dict[str | bool, str] = {True: "group", False: "none"}
        self.scale_rewards = scales.get(self.scale_rewards, self.scale_rewards)
        if self.vllm_importance_sampling_cap is not None:
            self.vllm_importance_sampling_clip_max = self.vllm_importance_sampling_cap
            self.vllm_importance_sampling_cap = None
        if self.num_generations < 2:
            raise ConfigError(
                "GRPO compares answers to one prompt: num_generations must be at least 2, not "
                f"{self.num_generations}"
            )
        self._count_answers()
        if self.sync_ref_model and self.beta == 0:
            raise ConfigError(
                "sync_ref_model=True has nothing to follow: with beta=0.0 there is no reference "
                "model. Set beta above 0, or sync_ref_model=False"
            )

    def _count_answers(self) -> None:
        """Of generation_batch_size and steps_per_generation one is given, or neither."""
        at_once = self.per_device_train_batch_size
        if self.generation_batch_size is None:
            if self.steps_per_generation is None:
                self.steps_per_generation = self.gradient_accumulation_steps
            self.generation_batch_size = at_once * self.steps_per_generation
        elif self.steps_per_generation is not None:
            raise ConfigError(
                "generation_batch_size and steps_per_generation say the same thing: set one of them"
            )
        elif self.generation_batch_size % at_once:
            raise ConfigError(
                f"generation_batch_size ({self.generation_batch_size}) must be divisible by "
                f"per_device_train_batch_size ({at_once})"
            )
        else:
            self.steps_per_generation = self.generation_batch_size // at_once
        if self.generation_batch_size % self.num_generations:
            raise ConfigError(
                f"generation_batch_size ({self.generation_batch_size}) must be divisible by "
                f"num_generations ({self.num_generations}): it holds whole groups"
            )
        evaluated = self.num_generations_eval or self.num_generations
        if self.eval_strategy != "no" and self.per_device_eval_batch_size % evaluated:
            raise ConfigError(
                f"per_device_eval_batch_size ({self.per_device_eval_batch_size}) must be divisible "
                f"by the answers to each prompt in an evaluation ({evaluated})"
            )
