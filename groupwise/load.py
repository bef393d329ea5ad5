"""From a config to the parts that a run needs. The one place that maps names to code."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from groupwise.config import Config, EngineSettings
from groupwise.evaluate import evaluate, judges
from groupwise.policy.load import Policy, load_policy, pick_device, pick_dtype
from groupwise.policy.prompts import fit_prompts
from groupwise.rewards.base import Reward
from groupwise.rewards.catalog import resolve
from groupwise.rewards.scorer import Scorer
from groupwise.rollout.collect import Prompted
from groupwise.rollout.engine import Engine
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.native.probe import why_not
from groupwise.rollout.transformers import TransformersEngine
from groupwise.tasks.base import Split, Task
from groupwise.tasks.catalog import build_task

log = logging.getLogger("groupwise")

ENGINES: dict[str, Callable[[Policy, EngineSettings], Engine]] = {
    "native": lambda policy, s: NativeEngine(policy, s.max_batch, s.compile),
    "transformers": lambda policy, s: TransformersEngine(policy, s.max_batch),
}


@dataclass
class Parts:
    """All that is built from a config and holds no progress of its own. Close it after use."""

    config: Config
    policy: Policy
    task: Task
    engine: Engine
    scorer: Scorer
    judge: Scorer
    problems: dict[Split, list[Prompted]]

    def evaluate(self, split: Split) -> dict[str, float]:
        return evaluate(
            self.problems[split][: self.config.eval.problems],
            self.engine,
            self.policy,
            self.task,
            self.judge,
            self.config.eval,
            self.config.rollout,
            seed=self.config.seed,
            rewards=self.scorer,
        )

    def __enter__(self) -> "Parts":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.scorer.close()
        self.judge.close()


def load_parts(
    config: Config,
    *,
    weights: str | None = None,
    rewards: Sequence[Reward] | None = None,
    task: Task | None = None,
) -> Parts:
    """Build everything. `weights`: a folder to load instead of config.model (a checkpoint's)."""
    task = task or build_task(config.task)
    chosen = list(rewards) if rewards is not None else find_rewards(config, task)
    scorer = Scorer(chosen, config.reward_timeout, config.on_reward_error)
    judge = Scorer(judges(task), config.reward_timeout, "stop")
    policy = load_config_policy(config, weights)
    problems: dict[Split, list[Prompted]] = {}
    splits: dict[Split, Sequence[Any]] = {
        "train": task.train,
        "validation": task.validation,
        "test": task.test,
    }
    for split, found in splits.items():
        limit = config.rollout.max_prompt_tokens
        problems[split], dropped = fit_prompts(found, policy.tokenizer, limit)
        if dropped:
            log.warning(
                "%d of %d %s prompts are longer than %d tokens and were left out",
                dropped,
                len(found),
                split,
                limit,
            )
    engine = make_engine(policy, config)
    return Parts(config, policy, task, engine, scorer, judge, problems)


def make_engine(policy: Policy, config: Config) -> Engine:
    """The engine that was asked for; for `auto` the native one, where it can serve the model."""
    kind = config.engine.kind
    if kind in ("auto", "native"):
        reason = why_not(policy)
        if reason is not None:
            log.warning("sampling with transformers' generate, which is slower: %s", reason)
        kind = "native" if reason is None else "transformers"
    return ENGINES[kind](policy, config.engine)


def load_config_policy(config: Config, weights: str | None = None) -> Policy:
    device = pick_device(config.device)
    return load_policy(
        weights or config.model,
        device,
        pick_dtype(config.precision, device),
        layout=config.batch.layout,
        gradient_checkpointing=config.gradient_checkpointing,
    )


def find_rewards(config: Config, task: Task) -> list[Reward]:
    """A recipe's rewards; `correct` and `format` are the task's own judges."""
    own = {reward.name: reward.function for reward in judges(task)}
    return [
        Reward(
            setting.name, own.get(setting.name) or resolve(setting.name), setting.weight,
            setting.options,
        )
        for setting in config.rewards
    ]  # fmt: skip


def describe(config: Config, policy: Policy) -> str:
    """The choices that `auto` made, in one line."""
    size = sum(p.numel() for p in policy.model.parameters())
    dtype = str(policy.model.dtype).removeprefix("torch.")
    threads = f" ({torch.get_num_threads()} threads)" if policy.device.type == "cpu" else ""
    return (
        f"{config.model}: {size / 1e6:.1f} M parameters, {dtype} on {policy.device.type}{threads}, "
        f"{policy.layout.replace('_', '-')} batches"
    )
