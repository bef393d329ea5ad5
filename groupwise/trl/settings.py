"""From GRPOConfig to the config of a run, by the tables that `groupwise import` reads.

What an import can only report is refused here: a field that has no counterpart would otherwise be
ignored. Fields that concern the loop around a step (logging, evaluation, saving, the hub, learning
rate and optimizer) are followed by the trainer itself.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from groupwise.config import Config
from groupwise.errors import ConfigError, DataError
from groupwise.interop.import_trl import Imported, from_trl
from groupwise.interop.unmatched import fields_of
from groupwise.recipe import parse
from groupwise.trl.config import GRPOConfig, as_dict

TRAINER_DOES = frozenset(
    (
        "num_train_epochs", "max_steps", "report_to", "trackio_space_id", "trackio_bucket_id",
        "trackio_static_space_id", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start",
        "num_generations_eval", "push_to_hub", "hub_token", "hub_private_repo", "hub_model_id",
        "hub_strategy", "hub_always_push", "hub_revision", "lr_scheduler_type",
        "lr_scheduler_kwargs", "optim", "optim_args", "trust_remote_code", "disable_dropout",
        "cast_lm_head_to_fp32", "chat_template_kwargs", "accelerator_config",
        "max_tool_calling_iterations", "full_determinism", "torch_compile",
        "load_best_model_at_end", "metric_for_best_model", "greater_is_better",
        "vllm_importance_sampling_cap",
    )
)  # fmt: skip
OURS = ("max_steps", "groupwise")
"""Fields that are not read as settings of TRL's."""
UNLIMITED = 1_000_000_000
"""TRL has no limit on the length of prompts or the time that a reward takes, and keeps all
checkpoints unless save_total_limit says otherwise."""


@dataclasses.dataclass(frozen=True)
class Length:
    """How long a run is.

    Length(updates=2, rollouts=30, rollouts_in_epoch=10)   # 60 optimizer steps in three passes
    """

    updates: int
    """Optimizer steps on one rollout."""
    rollouts: int
    rollouts_in_epoch: int | None
    """None where the dataset has no length."""

    @property
    def max_steps(self) -> int:
        return self.rollouts * self.updates

    def epoch(self, step: float) -> float:
        """How many passes over the data so many optimizer steps are."""
        rollouts = self.rollouts_in_epoch or self.rollouts
        return step / (rollouts * self.updates)


def imported_args(args: GRPOConfig) -> Imported:
    """Refuses what this trainer does not follow."""
    fields = fields_of(args)
    if args.steps_per_generation is not None:
        fields.pop("generation_batch_size", None)
        fields["steps_per_generation"] = args.steps_per_generation
    if args.max_completion_length is None:
        raise ConfigError("max_completion_length=None: answers need a limit on their length")
    imported = from_trl({name: v for name, v in fields.items() if name not in OURS})
    refused = [line for name, line in imported.lost.items() if name not in TRAINER_DOES]
    refused += _refused_values(args, imported)
    if refused:
        raise ConfigError("not supported by groupwise.trl: " + "; ".join(refused))
    return imported


def _refused_values(args: GRPOConfig, imported: Imported) -> list[str]:
    """Values of fields that are followed otherwise, and combinations."""
    refused = []
    if args.use_adaptive_entropy and imported.updates > 1:
        refused.append(
            f"use_adaptive_entropy with {imported.updates} optimizer steps a rollout: the weight "
            "moves once a rollout here, and once an optimizer step in TRL"
        )
    if args.sync_ref_model and args.ref_model_sync_steps % imported.updates:
        refused.append(
            f"ref_model_sync_steps={args.ref_model_sync_steps}: the reference follows at the end "
            f"of a rollout, which has {imported.updates} optimizer steps"
        )
    if args.save_strategy == "best":
        refused.append("save_strategy=best: use load_best_model_at_end=True")
    if args.hub_strategy in ("checkpoint", "all_checkpoints"):
        refused.append("hub_strategy: models are pushed, and no checkpoints (end, every_save)")
    if args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"):
        refused.append("lr_scheduler_type: a rate depends on the step alone")
    by_answer = args.vllm_importance_sampling_mode.startswith("sequence")
    if args.use_vllm and args.loss_type == "vespo" and by_answer:
        refused.append("loss_type=vespo: set vllm_importance_sampling_mode=token_truncate")
    if getattr(args.accelerator_config, "split_batches", False):
        refused.append("accelerator_config: split_batches")
    return refused


def length_of(args: GRPOConfig, imported: Imported, rows: int | None) -> Length:
    """As TRL counts: an epoch leaves out the rows that fill no rollout. `rows`: None if unknown."""
    updates, prompts = imported.updates, imported.tree["batch"]["prompts"]
    in_epoch = None if rows is None else rows // prompts
    if in_epoch == 0:
        raise DataError(
            f"train_dataset has {rows} rows, fewer than the {prompts} prompts of one rollout "
            f"({args.generation_batch_size} answers, {args.num_generations} to each prompt): lower "
            "per_device_train_batch_size, gradient_accumulation_steps or steps_per_generation"
        )
    if args.max_steps > 0:
        if args.max_steps % updates:
            below = args.max_steps - args.max_steps % updates
            raise ConfigError(
                f"max_steps={args.max_steps} ends in the middle of a rollout, which has {updates} "
                f"optimizer steps: set it to {below or updates} or {below + updates}"
            )
        return Length(updates, args.max_steps // updates, in_epoch)
    if in_epoch is None:
        raise ConfigError(
            "a dataset without a length needs max_steps: set GRPOConfig(max_steps=...)"
        )
    return Length(updates, math.ceil(args.num_train_epochs * in_epoch), in_epoch)


def run_config(
    args: GRPOConfig,
    imported: Imported,
    length: Length,
    *,
    model: str,
    rewards: Mapping[str, float],
    environment: Mapping[str, Any] | None,
) -> Config:
    """What the run's folder keeps as config.yaml; it names the parts that were in memory."""
    tree: dict[str, Any] = {key: _copy(value) for key, value in imported.tree.items()}
    tree |= {
        "steps": length.rollouts,
        "model": model,
        "device": "cpu" if args.use_cpu else "auto",
        "task": {"kind": "python", "path": "groupwise.trl:train_dataset"},
        "rewards": [{"name": name, "weight": weight} for name, weight in rewards.items()],
        "reward_timeout": float(UNLIMITED),
        "checkpoint": {"every": 0, "keep": args.save_total_limit or UNLIMITED},
        "tracking": {"tensorboard": False},
        "compile": "all" if args.torch_compile else "auto",
    }
    tree.pop("adapter", None)
    tree.pop("eval", None)
    tree["rollout"]["max_prompt_tokens"] = UNLIMITED
    if environment is not None:
        tree["environment"] = dict(environment)
    own = as_dict(args.groupwise)
    return parse(tree, [f"{name}={json.dumps(value)}" for name, value in own.items()])


def _copy(value: Any) -> Any:
    return {key: _copy(each) for key, each in value.items()} if isinstance(value, dict) else value
