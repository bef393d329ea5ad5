"""What a recipe says, in words: model, task, rewards, batch, objective."""

from dataclasses import dataclass

import yaml
from rich.markup import escape

from groupwise.config import Config
from groupwise.load import Parts, describe, describe_workers
from groupwise.secrets import without_secrets
from groupwise.tracking.console import console


@dataclass(frozen=True)
class BatchPlan:
    """Everything that follows from the batch settings, derived once and shown by `check`."""

    prompts: int
    group_size: int
    minibatches: int
    epochs: int
    tokens_per_microbatch: int

    @property
    def answers(self) -> int:
        return self.prompts * self.group_size

    @property
    def optimizer_steps(self) -> int:
        return self.minibatches * self.epochs

    def describe(self) -> str:
        steps = self.optimizer_steps
        return (
            f"{self.prompts} prompts x {self.group_size} answers = {self.answers} answers a step, "
            f"{steps} optimizer step{'s' * (steps > 1)} "
            f"({self.minibatches} minibatches x {self.epochs} epochs), "
            f"at most {self.tokens_per_microbatch} tokens at once"
        )


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
        "objective": f"{objective.preset}: {objective.ratio} ratio, {objective.surrogate.kind}, "
        f"{objective.aggregate}, advantages: {objective.advantage.formula()}",
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
