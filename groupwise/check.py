"""`groupwise check`: what a recipe will do, in words, before anything is trained."""

import yaml

from groupwise.batch import BatchPlan
from groupwise.config import Config
from groupwise.load import describe, load_parts
from groupwise.tracking.console import console
from groupwise.train.api import check_plan


def batch_plan(config: Config) -> BatchPlan:
    batch = config.batch
    return BatchPlan(
        batch.prompts,
        batch.group_size,
        batch.minibatches,
        batch.epochs,
        batch.tokens_per_microbatch,
    )


def print_check(name: str, config: Config) -> None:
    check_plan(config)
    with load_parts(config) as parts:
        counts = ", ".join(f"{len(found)} {split}" for split, found in parts.problems.items())
        objective = config.algorithm
        lines = {
            "recipe": name,
            "policy": describe(config, parts.policy),
            "task": f"{parts.task.name}: {counts} problems",
            "rewards": ", ".join(f"{r.name} x {r.weight:g}" for r in parts.scorer.rewards),
            "batch": batch_plan(config).describe(),
            "objective": f"{objective.preset}: {objective.ratio} ratio, {objective.surrogate}, "
            f"{objective.aggregate}, scale {objective.scale}",
            "reference": config.reference.kind if objective.needs_reference else "none (no KL)",
            "sampling": f"temperature {config.rollout.temperature:g}, "
            f"up to {config.rollout.max_completion_tokens} tokens",
        }
        for key, text in lines.items():
            console.print(f"[bold]{key:<10}[/] {text}", highlight=False)
    console.print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), highlight=False)
