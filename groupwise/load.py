"""From a config to the parts that a run needs. The one place that maps names to code."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from groupwise.config import Config, RewardSettings
from groupwise.distributed.world import ALONE, World
from groupwise.evaluate import Evaluation, evaluate, judges
from groupwise.extensions import load_object
from groupwise.policy.compiled import compiles_training, is_worth_compiling
from groupwise.policy.footprint import footprint
from groupwise.policy.load import Policy, load_policy, pick_device, pick_dtype
from groupwise.policy.prompts import fit_prompts
from groupwise.policy.reference import KLReference, Reference
from groupwise.remote.reference_client import RemoteReference
from groupwise.remote.vllm_colocated import VllmColocated
from groupwise.remote.vllm_servers import vllm_servers
from groupwise.remote.worker_client import WorkersEngine
from groupwise.reward_models.reward import PREFIX, learned_reward
from groupwise.rewards.base import Reward
from groupwise.rewards.catalog import resolve
from groupwise.rewards.scorer import Scorer
from groupwise.rollout.collect import Prompted, reward_weights
from groupwise.rollout.engine import Engine
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.native.probe import native_engine_problem
from groupwise.rollout.transformers import TransformersEngine
from groupwise.tasks.base import Split, Task
from groupwise.tasks.catalog import build_task

log = logging.getLogger("groupwise")

MakeEngine = Callable[[Policy, Config], Engine]

ENGINES: dict[str, MakeEngine] = {
    # LLM.int8() asks at each product whether there are outliers: no graph can hold that.
    "native": lambda policy, config: NativeEngine(
        policy,
        config.engine.max_batch,
        is_worth_compiling(policy.model, policy.device, config.compile),
        graphs=not policy.int8,
    ),
    "transformers": lambda policy, config: TransformersEngine(policy, config.engine.max_batch),
    "vllm": lambda policy, config: (
        vllm_servers(policy, config) if config.engine.urls else VllmColocated(policy, config)
    ),
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
    world: World = ALONE
    close_engine: Callable[[], None] = lambda: None
    share_engine: Callable[[World], None] = lambda world: None
    """Tell the engine that several ranks ask it."""

    @property
    def reward_weights(self) -> dict[str, float]:
        return reward_weights(self.scorer, self.config.rollout)

    def evaluate(self, split: Split) -> Evaluation:
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
            world=self.world,
        )

    def __enter__(self) -> "Parts":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close_engine()
        self.scorer.close()
        self.judge.close()


def load_parts(
    config: Config,
    *,
    weights: str | None = None,
    rewards: Sequence[Reward] | None = None,
    task: Task | None = None,
    engine: MakeEngine | None = None,
    training: bool = False,
) -> Parts:
    """Build everything. `weights`: a folder to load instead of config.model (a checkpoint's).

    `training`: for a run, which samples in workers where the recipe says so.
    """
    config = config.model_copy(update={"algorithm": config.algorithm.loaded()})
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
    parts = (config, policy, task)
    if engine is not None:
        return Parts(*parts, engine(policy, config), scorer, judge, problems)
    if training and config.workers.apart:
        log.info("workers: %s", describe_workers(config))
        workers = WorkersEngine(policy, config)
        return Parts(*parts, workers, scorer, judge, problems, close_engine=workers.close)
    if config.engine.kind == "vllm" and config.engine.urls:
        servers = vllm_servers(policy, config)
        return Parts(*parts, servers, scorer, judge, problems, share_engine=servers.share)
    return Parts(*parts, make_engine(policy, config), scorer, judge, problems)


def make_engine(policy: Policy, config: Config) -> Engine:
    """The engine that was asked for; for `auto` the native one, where it can serve the model."""
    kind = config.engine.kind
    if kind in ("auto", "native"):
        reason = native_engine_problem(policy)
        if reason is not None:
            log.warning("sampling with transformers' generate, which is slower: %s", reason)
        kind = "native" if reason is None else "transformers"
    make = load_object(kind, what="engine.kind") if ":" in kind else ENGINES[kind]
    return make(policy, config)


def load_config_policy(config: Config, weights: str | None = None) -> Policy:
    device = pick_device(config.device)
    return load_policy(
        config.model,
        device,
        pick_dtype(config.precision, device),
        layout=config.batch.layout,
        gradient_checkpointing=config.gradient_checkpointing,
        adapter=config.adapter,
        quantization=config.quantization,
        weights=weights,
        seed=config.seed,
    )


def make_reference(config: Config, policy: Policy, *, fresh: bool) -> KLReference:
    """What KL is measured against. `fresh`: the policy is still what the run starts from."""
    settings = config.reference
    if settings.kind == "server":
        return RemoteReference(settings, policy, fresh=fresh)
    # Frozen, the start is loaded once more; that of an adapter lies below it.
    again = not fresh and settings.kind == "frozen" and policy.adapter is None
    origin = load_config_policy(config) if again else policy
    compiled = compiles_training(policy.model, policy.device, config)
    return Reference(origin, settings, compiled=compiled)


def find_rewards(config: Config, task: Task) -> list[Reward]:
    """A recipe's rewards; `correct` and `format` are the task's own judges."""
    own = {reward.name: reward.function for reward in judges(task)}

    def found(setting: RewardSettings) -> Reward:
        name, weight, options = setting.name, setting.weight, setting.options
        if not name.startswith(PREFIX):
            return Reward(name, own.get(name) or resolve(name), weight, options)
        return Reward(name, learned_reward(name, options, pick_device(config.device)), weight)

    return [found(setting) for setting in config.rewards]


def describe(config: Config, policy: Policy) -> str:
    """The choices that `auto` made, and what they cost in memory, in one line."""
    cost = footprint(policy.model, config.optimizer)
    dtype = str(policy.model.dtype).removeprefix("torch.")
    held = f"{config.quantization} and {dtype}" if config.quantization else dtype
    threads = f" ({torch.get_num_threads()} threads)" if policy.device.type == "cpu" else ""
    return (
        f"{config.model}: {cost.parameters / 1e6:.1f} M parameters, {held} on "
        f"{policy.device.type}{threads}, {policy.layout.replace('_', '-')} batches; {cost}"
    )


def describe_workers(config: Config) -> str:
    """Who samples, how old their weights may be, and what corrects for that."""
    workers, how = config.workers, config.algorithm.mismatch
    named = ", ".join([f"{workers.count} of this machine"] * (workers.count > 0) + [*workers.urls])
    if not workers.staleness:
        return f"{named}; answers are by the present weights"
    fixed = f"corrected for by algorithm.mismatch={how}" if how != "none" else "NOT corrected for"
    return f"{named}; answers are by weights up to {workers.staleness} updates old, {fixed}"
