"""Where problems come from: one class of settings for each kind of task."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from groupwise.config.base import Settings
from groupwise.extensions import Code

MOST_GENERATED = 1_000_000
"""Generating more takes longer than anyone waits, and more memory than a machine has."""


class TaskSettings(Settings):
    """What every task of ours has."""

    train_size: int | None = Field(default=None, ge=1)
    """At most so many training problems (None or 0: all of a dataset; 4096 generated ones)."""
    test_size: int = Field(default=200, ge=1)
    """At most so many held-out problems in each of validation and test."""

    @field_validator("train_size", mode="before")
    @classmethod
    def _none_is_all(cls, value: Any) -> Any:
        return None if value == 0 and value is not False else value


class GeneratedTask(TaskSettings):
    """What tasks have whose problems are generated, all of them before training starts."""

    train_size: int | None = Field(default=None, ge=1, le=MOST_GENERATED)
    """Training problems to generate (None: 4096)."""
    test_size: int = Field(default=200, ge=1, le=MOST_GENERATED)
    """Problems to generate for each of validation and test."""


class ArithmeticTask(GeneratedTask):
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


class CountdownTask(GeneratedTask):
    """Reach a target from given numbers, each used once. Generated, always solvable; or data."""

    kind: Literal["countdown"] = "countdown"
    path: str | None = None
    """A file, a folder or a hub id with the columns nums and target (None: generated problems)."""
    seed: int = 0
    """Which problems are generated. Not the seed of the run."""
    numbers: tuple[int, int] = (3, 4)
    """How many numbers a problem has: from, to (3 to 6)."""
    largest: int = Field(default=99, ge=10)
    """The numbers are between 1 and this."""
    prefill: str = ""
    """Text that opens every answer."""

    @field_validator("numbers")
    @classmethod
    def _in_range(cls, value: tuple[int, int]) -> tuple[int, int]:
        if not 3 <= value[0] <= value[1] <= 6:
            raise ValueError(f"numbers must be [from, to] with 3 <= from <= to <= 6, not {value}")
        return value


class GuessNumberTask(GeneratedTask):
    """Guess a number between two bounds, with `environment: guess_number`. Generated."""

    kind: Literal["guess_number"] = "guess_number"
    seed: int = 0
    """Which problems are generated. Not the seed of the run."""
    train_size: int | None = Field(default=1000, ge=1, le=MOST_GENERATED)
    """Training problems to generate (None: 4096; needs a small span)."""
    test_size: int = Field(default=100, ge=1, le=MOST_GENERATED)
    """Problems to generate for each of validation and test."""
    span: int = Field(default=64, ge=2, le=99)
    """Distance between the bounds: 64 can be halved six times."""


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
    answer_format: Literal["tags", "hashes", "reasoning", "working_out"] = "tags"
    """tags: <think>, <answer>. hashes: `#### 42`. reasoning, working_out: lm_book's, cookbook's."""
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


class GymTask(GeneratedTask):
    """Any task of reasoning-gym, generated and judged by it. Extra: groupwise[gym]."""

    kind: Literal["gym"] = "gym"
    name: str
    """Its name there. `task: gym:countdown` says kind and name at once."""
    seed: int = 0
    """Which problems are generated. Not the seed of the run."""
    train_size: int | None = Field(default=1000, ge=1, le=MOST_GENERATED)
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


class EnvironmentTask(GeneratedTask):
    """The environment says what each problem is, when it is reset; `steps` is how long it goes."""

    kind: Literal["environment"] = "environment"
    prompt: str = ""
    """What every problem begins with, before the environment's own text."""


class PythonTask(Settings):
    """A function of the user's own that returns a groupwise.tasks.base.Task."""

    kind: Literal["python"] = "python"
    path: Annotated[str, Code("task")]
    """file.py:function or package.module:function; called with options as keywords."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for that function."""


class VerifiersTask(TaskSettings):
    """The datasets of `environment: {kind: verifiers}`, which is its default task."""

    kind: Literal["verifiers"] = "verifiers"
    env: str
    """As the environment's."""
    args: dict[str, Any] = Field(default_factory=dict)
    """As the environment's."""
    python: str | None = None
    """As the environment's."""


AnyTask = Annotated[
    ArithmeticTask
    | CountdownTask
    | GuessNumberTask
    | Gsm8kTask
    | AquaRatTask
    | MathQaTask
    | MathTask
    | GymTask
    | JsonlTask
    | HubTask
    | EnvironmentTask
    | PythonTask
    | VerifiersTask,
    Field(discriminator="kind"),
]
