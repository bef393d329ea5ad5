"""Every setting of a run, as one frozen tree. Importable without torch, so errors come at once.

The docstring under a field is its documentation; docs/configuration.md is made of them.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from groupwise.objective.presets import Objective
from groupwise.types import Sampling


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=()
    )


class TaskSettings(Settings):
    """What every task of ours has."""

    train_size: int | None = Field(default=None, ge=1)
    """At most so many training problems (None: all of a dataset; 4096 generated ones)."""
    test_size: int = Field(default=200, ge=1)
    """At most so many held-out problems in each of validation and test."""


class ArithmeticTask(TaskSettings):
    """Sums and differences worked out step by step. Generated; splits are disjoint by a hash."""

    kind: Literal["arithmetic"] = "arithmetic"
    seed: int = 0
    """Which problems are generated. Not the seed of the run."""
    operators: tuple[Literal["+", "-", "*"], ...] = ("+", "-")
    """Drawn from at each step."""
    digits: int = Field(default=2, ge=1, le=6)
    """Operands have up to so many digits."""
    steps: int = Field(default=2, ge=1, le=8)
    """Operations in a problem: 2 makes 23+48-16."""


class CountdownTask(TaskSettings):
    """Reach a target from given numbers, each used once. Generated, always solvable."""

    kind: Literal["countdown"] = "countdown"
    seed: int = 0
    """Which problems are generated. Not the seed of the run."""
    numbers: tuple[int, int] = (3, 4)
    """How many numbers a problem has: from, to (3 to 6)."""
    largest: int = Field(default=99, ge=10)
    """The numbers are between 1 and this."""

    @field_validator("numbers")
    @classmethod
    def _in_range(cls, value: tuple[int, int]) -> tuple[int, int]:
        if not 3 <= value[0] <= value[1] <= 6:
            raise ValueError(f"numbers must be [from, to] with 3 <= from <= to <= 6, not {value}")
        return value


class DatasetTask(TaskSettings):
    """What every public dataset of ours has."""

    path: str | None = None
    """A folder with the dataset's own files (None: the hub)."""
    system: str | None = None
    """The system prompt (None: one that asks for the form that is judged; "": none at all)."""
    prefill: str = ""
    """Text that opens every answer."""


class Gsm8kTask(DatasetTask):
    """Grade-school word problems: the hub's openai/gsm8k, or a folder with train/test JSONL."""

    kind: Literal["gsm8k"] = "gsm8k"
    answer_format: Literal["tags", "hashes"] = "tags"
    """tags: <think> and <answer>. hashes: GSM8K's own, reasoning and then `#### 42`."""
    few_shot: int = Field(default=0, ge=0, le=32)
    """Worked examples shown before each question, from the start of the training file."""
    validation_size: int = Field(default=200, ge=1)
    """Problems taken from the end of the training file for validation."""


class AquaRatTask(DatasetTask):
    """Algebra with five choices: the hub's deepmind/aqua_rat, or a folder with train/dev/test."""

    kind: Literal["aqua_rat"] = "aqua_rat"


class MathQaTask(DatasetTask):
    """AQuA's questions, cleaned: the hub's allenai/math_qa, or a folder with train/dev/test."""

    kind: Literal["mathqa"] = "mathqa"


class MathTask(DatasetTask):
    """MATH, competition problems with a LaTeX answer in \\boxed{}: the hub's copy, or a folder."""

    kind: Literal["math"] = "math"


class GymTask(TaskSettings):
    """Any task of reasoning-gym, generated and judged by it. Extra: groupwise[gym]."""

    kind: Literal["gym"] = "gym"
    name: str
    """Its name there. `task: gym:countdown` says kind and name at once."""
    seed: int = 0
    """Which problems are generated. Not the seed of the run."""
    train_size: int | None = Field(default=1000, ge=1)
    """Training problems to generate (None: 4096)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Its settings, as reasoning-gym names them: {min_numbers: 3, max_numbers: 4}."""
    prefill: str = ""
    """Text that opens every answer."""


class JsonlTask(TaskSettings):
    """The user's own problems: a JSON Lines file, or a folder with train/validation/test files."""

    kind: Literal["jsonl"] = "jsonl"
    seed: int = 0
    """How problems are split where the data has no splits. Not the seed of the run."""
    path: str
    """A .jsonl file (split by a hash of the prompt) or a folder of train/validation/test.jsonl."""
    prompt: str = "prompt"
    """The column with the prompt: text, or a conversation as TRL has it."""
    answer: str | None = "answer"
    """The column with the right answer (None: there is none, rewards alone decide)."""
    system: str | None = None
    """A system prompt; makes plain prompts conversational."""
    prefill: str = ""
    """Text that opens every answer."""


class HubTask(JsonlTask):
    """A dataset of the Hugging Face hub, with the user's own columns."""

    kind: Literal["hub"] = "hub"  # pyright: ignore[reportIncompatibleVariableOverride]
    name: str | None = None
    """The dataset's configuration name."""
    train_split: str = "train"
    """Its split for training."""
    test_split: str | None = None
    """Its held-out split (None: a part of the training split, by a hash of the prompt)."""


class PythonTask(Settings):
    """A function of the user's own that returns a groupwise.tasks.base.Task."""

    kind: Literal["python"] = "python"
    path: str
    """file.py:function or package.module:function; called with options as keywords."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for that function."""


AnyTask = Annotated[
    ArithmeticTask
    | CountdownTask
    | Gsm8kTask
    | AquaRatTask
    | MathQaTask
    | MathTask
    | GymTask
    | JsonlTask
    | HubTask
    | PythonTask,
    Field(discriminator="kind"),
]


class RewardSettings(Settings):
    """One reward: a name from `groupwise.rewards`, or a function of the user's own."""

    name: str
    """A built-in name, file.py:function or package.module:function."""
    weight: float = 1.0
    """Its share in the sum. 0 makes it a metric that is logged and never learned from."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Extra keyword arguments for the function."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data


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


class EngineSettings(Settings):
    """What samples answers."""

    kind: Literal["auto", "native", "transformers"] = "auto"
    """native: our own, in process. transformers: the model's own generate. auto: what serves it."""
    max_batch: int = Field(default=256, ge=1)
    """Answers sampled at once, if memory allows."""
    compile: bool = False
    """native, on CUDA: torch.compile the model's body; a minute at the start, faster after."""


class ReferenceSettings(Settings):
    """The model that KL is measured against; loaded only when algorithm.kl_weight is above 0."""

    kind: Literal["frozen", "copied", "mixed"] = "frozen"
    """frozen: the start. copied: the policy of some steps ago. mixed: a slow average of it."""
    every: int = Field(default=64, ge=1)
    """copied, mixed: steps between refreshes."""
    alpha: float = Field(default=0.6, gt=0, le=1)
    """mixed: share of the policy in each refresh."""


class OptimizerSettings(Settings):
    """AdamW and its schedule."""

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


class EvalSettings(Settings):
    """Held-out evaluation, with sampling settings of its own."""

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


class CheckpointSettings(Settings):
    """Checkpoints and what stays of them."""

    every: int = Field(default=10, ge=0)
    """Steps between checkpoints (0: only at the end)."""
    keep: int = Field(default=2, ge=1)
    """How many of the newest stay."""


class TrackingSettings(Settings):
    """Where metrics go, beside the console and metrics.jsonl."""

    tensorboard: bool = True
    """Event files under the run folder's events/."""
    trackio: bool = False
    """Extra: pip install 'groupwise[trackio]'."""
    wandb: bool = False
    """Extra: pip install 'groupwise[wandb]'."""
    project: str = "groupwise"
    """Project name for trackio and wandb."""
    rollouts: int = Field(default=1, ge=0)
    """Store every n-th step's answers, compressed (0: none)."""


class Config(Settings):
    """A whole run. `Config()` is the demo."""

    steps: int = Field(default=60, ge=1)
    """Rollout-and-update rounds."""
    seed: int = 0
    """Every random draw of the run derives from it."""
    model: str = "tiny"
    """tiny (embedded), smollm2, a hub id, or a folder."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: CUDA, else Apple MPS, else CPU."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 with fp32 master weights on CUDA, fp32 elsewhere."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    task: AnyTask = ArithmeticTask()
    """Where problems come from."""
    rewards: tuple[RewardSettings, ...] = (
        RewardSettings(name="correct"),
        RewardSettings(name="format", weight=0.2),
    )
    """What answers are scored by; the weighted sum is the reward."""
    reward_timeout: float = Field(default=30.0, gt=0)
    """Seconds that a reward may take for one answer."""
    on_reward_error: Literal["stop", "skip"] = "stop"
    """A reward that fails on an answer stops the run, or leaves that answer unscored."""
    batch: BatchSettings = BatchSettings()
    rollout: RolloutSettings = RolloutSettings(max_prompt_tokens=64, max_completion_tokens=48)
    engine: EngineSettings = EngineSettings()
    algorithm: Objective = Objective()
    """A preset's name, or a preset with overrides."""
    reference: ReferenceSettings = ReferenceSettings()
    optimizer: OptimizerSettings = OptimizerSettings(lr=5e-5)
    eval: EvalSettings = EvalSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    tracking: TrackingSettings = TrackingSettings()

    @field_validator("rewards")
    @classmethod
    def _some_reward(cls, value: tuple[RewardSettings, ...]) -> tuple[RewardSettings, ...]:
        if not any(reward.weight for reward in value):
            raise ValueError("at least one reward needs a weight other than 0")
        names = [reward.name for reward in value]
        if len(set(names)) < len(names):
            raise ValueError(f"each reward may be named once, not {names}")
        return value
