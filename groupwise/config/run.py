"""The settings of a run and of each of its parts."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from groupwise.config.addresses import TokenVariable, check_key_variable, check_server_url
from groupwise.config.base import Settings
from groupwise.config.blocks import with_changes
from groupwise.config.distributed import DistributedSettings
from groupwise.config.engine import (
    AnyEngine,
    AnyPlace,
    AnyTiming,
    AutoEngine,
    Here,
    InTurn,
    check_vllm_place,
    staleness_in,
)
from groupwise.config.environment import (
    AnyEnvironment,
    HasReward,
    NoEnvironment,
    check_problems,
    environment_kind,
)
from groupwise.config.ray import RaySettings
from groupwise.config.records import CheckpointSettings, TrackingSettings
from groupwise.config.tasks import AnyTask, ArithmeticTask
from groupwise.config.validation import validated
from groupwise.extensions import Code, one_of
from groupwise.objective.objective import Objective
from groupwise.types import Sampling

Fp8 = Literal["none", "sampling", "training", "all"]
OWN_REWARDS = ("reasoning_gym", "verifiers")
"""Kinds of environments that judge by themselves."""


class RewardSettings(Settings):
    """One reward: a name from `groupwise.rewards`, or a function of the user's own."""

    name: Annotated[str, Code("reward", unless="model:")]
    """A built-in name, file.py:function, package.module:function, or model:FOLDER_OR_HUB_ID."""
    weight: float = Field(default=1.0, ge=-1e6, le=1e6)
    """Its share in the sum. 0 makes it a metric that is logged and never learned from."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Extra keyword arguments for the function."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @field_validator("options")
    @classmethod
    def _sends_no_other_secret(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "key_variable" in value:
            check_key_variable(value["key_variable"])
        return value


class BatchSettings(Settings):
    """Batch sizes, said once: prompts x group_size answers per step. Nothing has to divide."""

    prompts: int = Field(default=16, ge=1)
    """Problems per step."""
    group_size: int = Field(default=8, ge=2)
    """Answers per problem."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps that one pass over the answers is split into."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the same answers (mu)."""
    tokens_per_microbatch: int = Field(default=16384, ge=1)
    """Memory: tokens that go through the model at once. Never changes the gradient."""
    layout: Literal["auto", "shared_prefix", "padded"] = "auto"
    """One row a group with its prompt stored once, or one padded row an answer. Same gradient."""


class RolloutSettings(Settings):
    """How answers are sampled for training."""

    max_prompt_tokens: int = Field(default=512, ge=1)
    """Longer prompts are left out at load, and counted."""
    max_completion_tokens: int = Field(default=256, ge=1)
    """Longer answers are cut off."""
    temperature: float = Field(default=1.0, gt=0)
    """Training needs variety, so this is above 0. Log-probs are taken at this temperature."""
    temperature_spread: tuple[float, float] | None = None
    """Lowest and highest: a group's answers are spread evenly over them, log-probs too."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the smallest set of tokens with at least this probability."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens (0: all)."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Keep tokens at least this fraction as likely as the likeliest."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Above 1 makes tokens that were already used less likely."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer, beside the model's end-of-sequence tokens."""
    max_draws: float = Field(default=1.0, ge=1)
    """Dynamic sampling: replace groups without spread, drawing at most this x batch.prompts."""
    overlong_buffer: int = Field(default=0, ge=0)
    """Soft penalty from 0 to -1 over so many tokens before the limit (0: off)."""

    @field_validator("temperature_spread")
    @classmethod
    def _lower_first(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not 0 < value[0] <= value[1]:
            raise ValueError(f"temperature_spread must be [lowest, highest] above 0, not {value}")
        return value

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            max_tokens=self.max_completion_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            stop=self.stop,
        )


class ReferenceSettings(Settings):
    """The model that KL is measured against; loaded only when algorithm.kl_weight is above 0."""

    kind: Literal["frozen", "copied", "mixed", "process", "server"] = "frozen"
    """frozen: the initial model. copied: the policy of some steps ago. mixed: a slow average of the
    policy. process, server: the initial model in a process that the run starts, or in servers."""
    every: int = Field(default=64, ge=1)
    """copied, mixed: steps between refreshes."""
    alpha: float = Field(default=0.6, gt=0, le=1)
    """mixed: share of the policy in each refresh."""
    urls: tuple[str, ...] = ()
    """server: where `groupwise serve reference` listens, such as http://127.0.0.1:8650."""
    token_env: TokenVariable = "GROUPWISE_TOKEN"
    """server: the environment variable that holds its token."""
    timeout: float = Field(default=60.0, gt=0)
    """server, process: seconds to wait for a reply before its work goes to another."""

    @model_validator(mode="after")
    def _servers_have_addresses(self) -> "ReferenceSettings":
        if (self.kind == "server") != bool(self.urls):
            raise ValueError(
                "kind=server needs urls=[http://HOST:PORT, ...], where `groupwise serve reference` "
                "listens"
                if self.kind == "server"
                else f"urls are for kind=server, not for kind={self.kind}"
            )
        for url in self.urls:
            check_server_url(url)
        return self


class AdapterSettings(Settings):
    """LoRA: small matrices are trained beside frozen weights. Left out: all weights are trained."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(default=16, ge=1)
    """Rank of the product of two thin matrices that is added to a weight."""
    alpha: float = Field(default=32.0, gt=0)
    """The product is scaled by alpha / rank."""
    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Layers that get one: all linear ones but the output head, or names such as q_proj, v_proj."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the adapter's input, in updates only: not in sampling, not for old log-probs."""
    rslora: bool = False
    """Scale by alpha / sqrt(rank): high ranks keep learning."""
    dora: bool = False
    """DoRA: train the magnitudes of a weight's rows apart from their directions; slower."""


class OptimizerSettings(Settings):
    """AdamW and its schedule."""

    kind: Annotated[str, Code("optimizer"), AfterValidator(one_of("adamw", "adamw_8bit"))] = "adamw"
    """adamw_8bit: moments in 8 bits, a quarter of the memory; extra: groupwise[quant]. Or
    `file.py:function` of yours."""
    offload: bool = False
    """Keep fp32 weights and moments in CPU memory: for a GPU that is too small, and slower."""
    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and second moment."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the denominator."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled; not on norms and biases."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After warm-up: stay, or fall to 0 at the last step."""
    warmup: float = Field(default=0.0, ge=0)
    """Steps of linear warm-up; below 1, a share of all steps."""
    average: float = Field(default=0.0, ge=0)
    """The final weights are the mean of those after so many last steps; below 1, a share of all.
    0: those after the last step."""


class EvalSettings(Settings):
    """Evaluation: on validation problems while it trains, on test problems before and after."""

    every: int = Field(default=0, ge=0)
    """Steps between evaluations on validation problems (0: only before and after)."""
    problems: int = Field(default=200, ge=1)
    """How many problems."""
    k: int = Field(default=4, ge=1)
    """Sampled answers per problem for mean, pass@k and maj@k (1: greedy only)."""
    temperature: float = Field(default=1.0, gt=0)
    """Of the sampled answers; accuracy is always greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Of the sampled answers."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Length limit (None: rollout's)."""


class Config(Settings):
    """A whole run. `Config()` is the demo."""

    steps: int = Field(default=60, ge=1)
    """Training steps, each a rollout and the update on it."""
    seed: int = 0
    """Every random draw of the run derives from it."""
    model: str = "tiny"
    """tiny or tiny_tools (embedded), smollm2, a hub id, or a folder."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: CUDA, else Apple MPS, else CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 with fp32 master weights on CUDA, fp32 elsewhere. fp16 scales its loss."""
    quantization: Literal["int8", "nf4"] | None = None
    """Hold the frozen weights in 8 or 4 bits, under an adapter; extra: groupwise[quant]."""
    adapter: AdapterSettings | None = None
    gradient_checkpointing: bool | Literal["offload"] = False
    """Recompute activations backward: less memory, more time. offload: layer inputs on the CPU."""
    clear_cache: bool = False
    """Empty torch's CUDA cache after each step: less fragmentation, slower."""
    compile: Literal["auto", "all", "sampling", "none"] = "auto"
    """torch.compile. auto: sampling, from 100 steps on all; on a CPU nothing."""
    fp8: Fp8 = "none"
    """Linear layers in 8-bit floating point where the model samples, trains, or both (Hopper)."""
    task: AnyTask = ArithmeticTask()
    """Where problems come from."""
    rewards: tuple[RewardSettings, ...] = (
        RewardSettings(name="correct"),
        RewardSettings(name="format", weight=0.2),
    )
    """What answers are scored by; the weighted sum is the reward."""
    environment: AnyEnvironment = NoEnvironment()
    """What the model talks to while it answers: tools, a game."""
    reward_timeout: float = Field(default=30.0, gt=0)
    """Seconds that a reward may take for one answer."""
    reward_processes: int = Field(default=1, ge=1, le=256)
    """Processes that share out the answers to functions that score one at a time."""
    on_reward_error: Literal["stop", "skip"] = "stop"
    """A reward that fails on an answer stops the run, or leaves that answer unscored."""
    batch: BatchSettings = BatchSettings()
    rollout: RolloutSettings = RolloutSettings(max_prompt_tokens=64, max_completion_tokens=48)
    engine: AnyEngine = AutoEngine()
    """What samples answers."""
    place: AnyPlace = Here()
    """Where it samples them."""
    timing: AnyTiming = InTurn()
    """When it samples them."""
    algorithm: Objective = Objective()
    """A preset's name, or a preset with overrides."""
    reference: ReferenceSettings = ReferenceSettings()
    optimizer: OptimizerSettings = OptimizerSettings(lr=5e-5)
    eval: EvalSettings = EvalSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    distributed: DistributedSettings = DistributedSettings()
    ray: RaySettings = RaySettings()
    tracking: TrackingSettings = TrackingSettings()

    def replace(self, **changes: Any) -> "Config":
        """The same with some settings changed, checked anew:
        config.replace(steps=10, algorithm="dapo", batch={"prompts": 8}, **{"optimizer.lr": 1e-5})
        """
        tree = self.model_dump(mode="json")
        if "mismatch" not in self.algorithm.model_fields_set:
            del tree["algorithm"]["mismatch"]  # what was not said follows the engine and timing
        plain = {k: v.model_dump() if isinstance(v, Settings) else v for k, v in changes.items()}
        return validated(Config, with_changes(tree, plain))

    @property
    def compiles_training(self) -> bool:
        return self.compile == "all" or (self.compile == "auto" and self.steps >= 100)

    @property
    def trains_in_fp8(self) -> bool:
        return self.fp8 in ("training", "all")

    @property
    def samples_in_fp8(self) -> bool:
        return self.fp8 in ("sampling", "all")

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether log-probs from before a step's first update have to be computed for it."""
        off_policy = self.batch.minibatches * self.batch.epochs > 1
        return off_policy or self.algorithm.kl_in_reward or self.algorithm.top_entropy < 1

    @property
    def reference_moves(self) -> bool:
        return self.algorithm.needs_reference and self.reference.kind in ("copied", "mixed")

    @model_validator(mode="before")
    @classmethod
    def _other_samplers_are_corrected_for(cls, data: Any) -> Any:
        """vLLM rounds otherwise than the trainer does, as does a trainer in 8 bits, and ahead of
        training weights are older: answers are weighed by how much that matters, unless the recipe
        says algorithm.mismatch."""
        if not isinstance(data, Mapping):
            return data
        engine, algorithm = data.get("engine"), data.get("algorithm", {})
        kind = engine if isinstance(engine, str) else getattr(engine, "kind", None)
        kind = engine.get("kind") if isinstance(engine, Mapping) else kind
        rounds = kind == "vllm" or data.get("fp8", "none") != "none"
        if not rounds and not staleness_in(data.get("timing")):
            return data
        if isinstance(algorithm, Objective):
            algorithm = algorithm.model_dump(exclude_unset=True)
        if isinstance(algorithm, str):
            algorithm = {"preset": algorithm}
        if isinstance(algorithm, Mapping):
            algorithm = {"mismatch": "token", **algorithm}
        return {**data, "algorithm": algorithm}

    @model_validator(mode="before")
    @classmethod
    def _environments_bring_what_they_have(cls, data: Any) -> Any:
        """Some judge by themselves, so that there is no other reward by default; those of verifiers
        have the problems too."""
        if not isinstance(data, Mapping):
            return data
        given, task = data.get("environment"), data.get("task", {})
        kind = environment_kind(given)
        own = isinstance(task, Mapping) and task.get("kind", kind) == kind
        if kind == "verifiers" and own and isinstance(given, Mapping | Settings):
            given = dict(given)
            same = {name: given[name] for name in ("env", "args", "python") if name in given}
            data = {**data, "task": {**task, "kind": kind, **same}}
        return {"rewards": (), **data} if kind in OWN_REWARDS else data

    @model_validator(mode="after")
    def _environments_have_their_problems(self) -> "Config":
        check_problems(self.environment.kind, self.task.kind)
        return self

    @model_validator(mode="after")
    def _vllm_is_told_what_it_can_follow(self) -> "Config":
        if self.engine.kind == "vllm":
            check_vllm_place(self.engine, self.place)
        return self

    @model_validator(mode="after")
    def _the_native_engine_has_fp8(self) -> "Config":
        if self.samples_in_fp8 and self.engine.kind not in ("auto", "native"):
            raise ValueError(
                f"fp8={self.fp8} is for the native engine: take fp8=training, or leave "
                f"engine.kind={self.engine.kind} out"
            )
        return self

    @model_validator(mode="after")
    def _quantized_weights_are_frozen(self) -> "Config":
        if self.quantization is not None and self.adapter is None:
            raise ValueError(
                f"quantization={self.quantization} leaves no weights that can be trained: "
                "add an adapter (adapter=lora), or leave quantization out"
            )
        return self

    @model_validator(mode="after")
    def _some_reward(self) -> "Config":
        own = isinstance(self.environment, HasReward) and self.environment.weight
        if not own and not any(reward.weight for reward in self.rewards):
            raise ValueError("rewards: at least one reward needs a weight other than 0")
        return self

    @field_validator("rewards")
    @classmethod
    def _named_once(cls, value: tuple[RewardSettings, ...]) -> tuple[RewardSettings, ...]:
        if len(names := [reward.name for reward in value]) > len(set(names)):
            raise ValueError(f"each reward may be named once, not {names}")
        return value
