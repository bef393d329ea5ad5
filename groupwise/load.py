"""From a config to the parts that a run needs. The one place that maps names to code."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from groupwise.config import Config, RewardSettings
from groupwise.config.validation import validated
from groupwise.describe import describe_place
from groupwise.distributed.world import ALONE, World
from groupwise.environments.base import EnvironmentFactory
from groupwise.environments.catalog import check_turn_rewards, find_environment, make_episodes
from groupwise.environments.groups import Episodes
from groupwise.errors import ConfigError, ModelError, shortened
from groupwise.extensions import is_marked, load_object, marking
from groupwise.policy.compiled import compiles_sampling
from groupwise.policy.fp8 import check_fp8
from groupwise.policy.in_memory import ModelInMemory
from groupwise.policy.load import Policy, load_policy, pick_device, pick_dtype, policy_of
from groupwise.policy.prompts import fit_prompts
from groupwise.policy.reference import KLReference, Reference
from groupwise.policy.training_layers import training_layers
from groupwise.remote.reference_client import RemoteReference
from groupwise.remote.reference_process import start_reference
from groupwise.remote.vllm_colocated import VllmColocated
from groupwise.remote.vllm_servers import VllmServers
from groupwise.remote.worker_client import WorkersEngine
from groupwise.remote.worker_payload import RunSettings
from groupwise.reward_models.reward import PREFIX, learned_reward
from groupwise.rewards.base import Reward
from groupwise.rewards.catalog import resolve
from groupwise.rewards.scorer import Scorer
from groupwise.rollout.engine import Engine, EngineElsewhere, run_sync
from groupwise.rollout.engine_thread import EngineThread
from groupwise.rollout.groups import (
    GroupSampling,
    Prompted,
    reward_weights,
    sample_group,
    score_groups,
)
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.native.probe import native_engine_problem
from groupwise.rollout.transformers import TransformersEngine
from groupwise.secrets import check_whole
from groupwise.tasks.base import SPLITS, Split, Task
from groupwise.tasks.catalog import build_task
from groupwise.tracking.activity import Progress
from groupwise.types import Group, Sampling

log = logging.getLogger("groupwise")

MakeEngine = Callable[[Policy, Config], Engine]


@dataclass(frozen=True)
class EngineKind:
    """How an engine is made in this process (`place: here`), and how one is that asks processes or
    servers of that kind (`place: processes`, `place: servers`)."""

    here: MakeEngine
    elsewhere: MakeEngine = WorkersEngine


ENGINES: dict[str, EngineKind] = {
    # LLM.int8() looks for outliers at every matrix product: a CUDA graph cannot capture that.
    "native": EngineKind(
        lambda policy, config: NativeEngine(
            policy,
            config.engine.max_batch,
            compiles_sampling(policy.device, config),
            graphs=not policy.int8,
            fp8=config.samples_in_fp8,
        )
    ),
    "transformers": EngineKind(
        lambda policy, config: TransformersEngine(policy, config.engine.max_batch)
    ),
    "vllm": EngineKind(VllmColocated, VllmServers),
}
"""What samples, by `engine.kind`."""


@dataclass
class Parts:
    """Everything that is built from a config and has no training state. Close it after use."""

    config: Config
    policy: Policy
    task: Task
    engine: Engine
    scorer: Scorer
    judge: Scorer
    problems: dict[Split, list[Prompted]]
    thread: EngineThread | None = None
    """The engine, where it samples in a thread while another one trains."""
    world: World = ALONE
    """The ranks that sample together, each its share, with a process group of their own."""
    samples: bool = True
    """Whether this rank samples: where engines are in other processes, rank 0 does for all."""
    waiting: World = ALONE
    """The ranks that wait while rank 0 samples."""
    episodes: Episodes | None = None
    """What makes an answer an episode, where there is an environment."""
    given: ModelInMemory | None = None
    """The model in memory, where one was passed instead of a name."""

    @property
    def reward_weights(self) -> dict[str, float]:
        return reward_weights(self.scorer, self.config.rollout, self.episodes)

    @property
    def group_sampling(self) -> GroupSampling:
        """How the groups of a step are sampled."""
        config = self.config
        settings = config.rollout.sampling, config.batch.group_size, config.seed
        spread = config.rollout.temperature_spread
        return GroupSampling(self.engine, self.policy, *settings, spread, self.episodes)

    def sample_groups(
        self,
        problems: Sequence[Prompted],
        sampling: Sampling,
        *,
        group_size: int,
        step: int | str,
        temperatures: tuple[float, float] | None = None,
        in_episodes: bool = True,
        what: str = "sampling",
    ) -> list[Group]:
        """`group_size` answers to each problem. Returns when the last one is done.

        `in_episodes=False`: plain answers even where there is an environment. `what` is shown with
        the progress.
        """
        episodes = self.episodes if in_episodes else None
        settings = sampling, group_size, self.config.seed, temperatures, episodes
        how = GroupSampling(self.engine, self.policy, *settings)

        async def gather() -> list[Group]:
            tasks = [asyncio.create_task(sample_group(each, step, how)) for each in problems]
            Progress(what).add(tasks)
            return await asyncio.gather(*tasks)

        groups = run_sync(gather())
        if episodes is not None:
            episodes.check(groups)
        return groups

    def score(self, groups: Sequence[Group]) -> list[Group]:
        """The groups with every reward on every answer."""
        return score_groups(groups, self.scorer, self.config.rollout, self.episodes)

    def __enter__(self) -> "Parts":
        return self

    def __exit__(self, *raised: object) -> None:
        self.engine.close()
        self.scorer.close()
        self.judge.close()
        if self.episodes is not None:
            self.episodes.close()


def load_parts(
    config: Config,
    *,
    weights: str | None = None,
    given: ModelInMemory | None = None,
    rewards: Sequence[Reward] | None = None,
    task: Task | None = None,
    engine: MakeEngine | None = None,
    environment: EnvironmentFactory | None = None,
    policy: Policy | None = None,
    training: bool = False,
    world: World = ALONE,
) -> Parts:
    """Build everything. `weights`: a folder to load instead of config.model (a checkpoint's).
    `given`: a model in memory instead; `policy`: one that is a policy already, on its device.

    `training`: for a run, which samples where and when the recipe says. Of its ranks (`world`)
    each samples its share in its own process; engines elsewhere are rank 0's, for all.
    """
    fp8 = config.fp8 if training else "none"  # a finished model answers with its own weights
    config = config.model_copy(update={"algorithm": config.algorithm.loaded(), "fp8": fp8})
    task = task or build_task(config.task)
    check_turn_rewards(config, world.size)
    environment = environment or find_environment(config.environment)
    chosen = list(rewards) if rewards is not None else find_rewards(config, task)
    seconds, processes = config.reward_timeout, config.reward_processes
    scorer = Scorer(chosen, seconds, config.on_reward_error, processes=processes)
    judge = Scorer(judges(task), seconds, "stop", processes=processes)
    here = not training or config.place.kind == "here"
    sharded = world.size > 1 and config.distributed.kind in ("fsdp2", "zero3")
    # A model that will be sharded is loaded on the CPU: no device has to hold all of it.
    in_parts = sharded and not here and config.adapter is None
    beside = training and config.timing.kind != "in_turn"
    # Sampling while training needs its own copy of the weights, which training does not change.
    copied = given.copied() if given is not None and beside and here else None
    at = torch.device("cpu") if in_parts else None
    policy = policy or load_config_policy(config, weights, at, given=given)
    if config.trains_in_fp8:
        check_fp8(policy, pick_device(config.device))
    episodes = _episodes(environment, config, policy, scorer)
    problems = _fitting_problems(config, task, policy)
    own = load_config_policy(config, weights, given=copied) if beside and here else policy
    if not here and not world.first:
        nobody = EngineElsewhere()
        made = Parts(config, policy, task, nobody, scorer, judge, problems, samples=False)
        return replace(made, waiting=world, episodes=episodes, given=given)
    sampler = (engine or (make_engine if here else _make_engine_elsewhere))(own, config)
    # vLLM has streams of its own.
    stream_on = own.device if here and config.engine.kind != "vllm" else None
    thread = EngineThread(sampler, stream_on) if beside else None
    made = Parts(config, policy, task, thread or sampler, scorer, judge, problems, thread)
    made = replace(made, episodes=episodes, given=given)
    return replace(made, world=world.on_spare_group()) if here else replace(made, waiting=world)


def _fitting_problems(config: Config, task: Task, policy: Policy) -> dict[Split, list[Prompted]]:
    """The problems whose prompts are not too long, with their prompts' tokens."""
    problems: dict[Split, list[Prompted]] = {}
    limit = config.rollout.max_prompt_tokens
    for split in SPLITS:
        listed = getattr(task, split)
        problems[split], dropped = fit_prompts(listed, policy.tokenizer, limit)
        _check_tokens([tokens for _, tokens in problems[split]], config.model, policy)
        if dropped:
            log.warning(
                "%d of %d %s prompts are longer than %d tokens and were left out",
                dropped,
                len(listed),
                split,
                limit,
            )
    return problems


def _check_tokens(prompts: Sequence[Sequence[int]], name: str, policy: Policy) -> None:
    """The tokenizer of another model may have tokens that this model has not."""
    rows = policy.model.get_input_embeddings().weight.shape[0]
    largest = max((max(tokens) for tokens in prompts), default=0)
    if largest >= rows:
        raise ModelError(
            f"the tokenizer of {name!r} writes token {largest}, and its model has {rows} tokens: "
            "they do not belong together"
        )


def _episodes(
    environment: EnvironmentFactory | None, config: Config, policy: Policy, scorer: Scorer
) -> Episodes | None:
    """None where an answer is one turn."""
    if environment is None:
        return None
    episodes = make_episodes(environment, config, policy)
    for name in {reward.name for reward in scorer.rewards} & set(episodes.reward_weights):
        raise ConfigError(
            f"the environment's own reward is named {name!r}, as one of `rewards` is: take that "
            "one out, or rename the environment's class"
        )
    return episodes


def _make_engine_elsewhere(policy: Policy, config: Config) -> Engine:
    log.info("engine: %s", describe_place(config))
    return engine_kind(config.engine.kind).elsewhere(policy, config)


def make_engine(policy: Policy, config: Config) -> Engine:
    """What samples in this process; for `auto` the native engine, where it can serve the model."""
    kind = config.engine.kind
    reason = native_engine_problem(policy) if kind in ("auto", "native") else None
    if reason is not None:
        if kind == "native" or config.samples_in_fp8:
            raise ModelError(
                f"engine.kind=native cannot serve {config.model}: {reason}. With engine.kind=auto "
                "or transformers, and without fp8, transformers' generate samples, more slowly"
            )
        log.warning("sampling with transformers' generate, which is slower: %s", reason)
        kind = "transformers"
    return engine_kind(kind).here(policy, config)


def engine_kind(kind: str) -> EngineKind:
    if ":" in kind:
        return EngineKind(load_object(kind, what="engine.kind"))
    return ENGINES["native" if kind == "auto" else kind]


def worker_engine(policy: Policy, run: RunSettings, *, trust_code: bool) -> Engine:
    """What samples in a rollout worker: what a run asks for, as far as it may."""
    kind = run.engine.kind
    if kind == "vllm":
        raise ConfigError(
            "a rollout worker does not run vLLM: start `groupwise serve vllm MODEL` instead and "
            "name that in place.urls, or let the trainer start it (place.kind=processes)"
        )
    if ":" in kind and not trust_code:
        raise ConfigError(
            f"engine.kind={kind} names code, and this worker runs none that a client names: start "
            "it with `groupwise serve rollouts MODEL --trust-code`"
        )
    if ":" in kind and not is_marked(load_object(kind, what="engine.kind"), "engine"):
        raise ConfigError(f"engine.kind={kind} is not marked as an engine: {marking('engine')}")
    settings = {"engine": run.engine, "compile": run.compile, "fp8": run.fp8}
    return make_engine(policy, validated(Config, settings))


def load_config_policy(
    config: Config,
    weights: str | None = None,
    device: torch.device | None = None,
    *,
    given: ModelInMemory | None = None,
) -> Policy:
    """Of a `given` model; else of the one that the config names, or its checkpoint `weights`."""
    device = device or pick_device(config.device)
    dtype = pick_dtype(config.precision, device)
    shared: dict[str, Any] = {
        "layout": config.batch.layout,
        "gradient_checkpointing": config.gradient_checkpointing,
        "adapter": config.adapter,
        "weights": weights,
        "seed": config.seed,
    }
    if given is not None and (weights is None or config.adapter is not None):
        return policy_of(given, device, None if config.precision == "auto" else dtype, **shared)
    return load_policy(config.model, device, dtype, quantization=config.quantization, **shared)


def make_reference(
    config: Config,
    policy: Policy,
    *,
    fresh: bool,
    given: ModelInMemory | None = None,
    world: World = ALONE,
) -> KLReference:
    """What KL is measured against. `fresh`: the policy is still what the run starts from."""
    settings = config.reference
    if settings.kind == "process":
        return start_reference(config, policy, world, fresh=fresh)
    if settings.kind == "server":
        return RemoteReference(settings, policy, fresh=fresh)
    # Frozen, the start is loaded once more; that of an adapter lies below it.
    again = not fresh and settings.kind == "frozen" and policy.adapter is None
    again = again or policy.device.type != pick_device(config.device).type
    origin = load_config_policy(config, given=given) if again else policy
    return Reference(origin, settings, training_layers(policy.device, config))


def judges(task: Task) -> list[Reward]:
    """What evaluation scores by: the task's own judges, weightless."""
    named = {"correct": task.correct, "format": task.formatted}
    return [Reward(name, judge, weight=0.0) for name, judge in named.items() if judge is not None]


def find_rewards(config: Config, task: Task) -> list[Reward]:
    """A recipe's rewards; `correct` and `format` are the task's own judges."""
    own = {reward.name: reward.function for reward in judges(task)}

    def reward_of(setting: RewardSettings) -> Reward:
        name, weight, options = setting.name, setting.weight, setting.options
        check_whole(options, f"{shortened(name)}: options")
        if not name.startswith(PREFIX):
            return Reward(name, own.get(name) or resolve(name), weight, options)
        return Reward(name, learned_reward(name, options, pick_device(config.device)), weight)

    return [reward_of(setting) for setting in config.rewards]
