"""What is measured, and what comes out: plain values that travel between processes as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Lengths = Literal["fixed", "natural"]

KINDS = (
    "generate",
    "vllm",
    "groupwise",
    "groupwise+compile",
    "trl",
    "trl+liger",
    "trl+vllm",
)
"""Who is measured. `generate` (transformers' own) and `vllm` sample and no more; the rest are whole
training steps."""


@dataclass(frozen=True)
class Setting:
    """One training step, the same for everyone.

    Setting("cpu", "smollm2", prompts=4, group=8, prompt_tokens=100, completion_tokens=64)
    """

    device: str
    model: str
    prompts: int
    group: int
    prompt_tokens: int
    completion_tokens: int
    lengths: Lengths = "fixed"
    beta: float = 0.0
    """Weight of the KL to a reference model; 0: there is none."""
    adapter: int = 0
    """Rank of a LoRA adapter of all linear layers, which alone is trained; 0: all weights are."""
    warmup: int = 1
    """Steps before those that count."""
    steps: int = 3
    """Steps that count; their median is reported."""
    trl_batch: int = 0
    """Answers that TRL takes through the model at once (0: all, halved while memory runs out)."""

    @property
    def answers(self) -> int:
        return self.prompts * self.group

    def describe(self) -> str:
        return (
            f"{self.model} on {self.device}: {self.prompts} prompts x {self.group} answers x "
            f"({self.prompt_tokens} + {self.completion_tokens}) tokens, {self.lengths} lengths, "
            f"beta {self.beta:g}" + (f", LoRA of rank {self.adapter}" if self.adapter else "")
        )


@dataclass(frozen=True)
class Measurement:
    """Seconds of one kind at one setting; phases that a kind does not have are missing."""

    kind: str
    setting: Setting
    seconds: Mapping[str, float]
    """generation, reference, update, step: medians over the counted steps."""
    every_step: tuple[Mapping[str, float], ...]
    """The same for each counted step."""
    tokens: float
    """Sampled in a step, the median."""
    longest: int
    """Tokens of the longest answer in any counted step."""
    peak_bytes: int
    """CUDA: most memory allocated by tensors. CPU: the process's largest resident set."""
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Failure:
    kind: str
    setting: Setting
    why: str


@dataclass(frozen=True)
class Size:
    """What a model costs: enough to compute the floor of a step."""

    body: int
    """Parameters that every token goes through, without embeddings and head."""
    head: int
    """Vocabulary times hidden size."""
    parameters: int
    """All that is trained."""
    layers: int
    attention: int
    """Query heads times their size."""
    kv: int
    """Numbers in the cache for one token: 2 x layers x key heads x their size."""
    bytes: int
    """Of one number: 4, or 2 in bf16."""


def measurement_from(data: Mapping[str, Any]) -> Measurement | Failure:
    """A line of JSON back into what it was."""
    setting = Setting(**data["setting"])
    if "why" in data:
        return Failure(data["kind"], setting, data["why"])
    values = {**data, "setting": setting, "every_step": tuple(data["every_step"])}
    return Measurement(**values)
