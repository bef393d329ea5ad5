"""What a recipe says, in words: model, task, rewards, batch, objective."""

import yaml
from rich.markup import escape

from groupwise.batch import BatchPlan
from groupwise.config import Config
from groupwise.load import Parts, describe, describe_workers
from groupwise.secrets import without_secrets
from groupwise.tracking.console import console


def batch_plan(config: Config) -> BatchPlan:
    batch = config.batch
    return BatchPlan(
        batch.prompts,
        batch.group_size,
        batch.minibatches,
        batch.epochs,
        batch.tokens_per_microbatch,
    )


def print_plan(name: str, parts: Parts) -> None:
    config, objective = parts.config, parts.config.algorithm
    counts = ", ".join(f"{len(found)} {split}" for split, found in parts.problems.items())
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
    if config.workers.apart:
        lines["workers"] = describe_workers(config)
    for key, text in lines.items():
        console.print(f"[bold]{key:<10}[/] {escape(text)}", highlight=False)


def print_settings(config: Config) -> None:
    text = yaml.safe_dump(without_secrets(config.model_dump(mode="json")), sort_keys=False)
    console.print(text, highlight=False, markup=False)
