"""What is done with a model in a step: a recipe's settings, as far as they cost anything."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from groupwise.config import Config, VllmEngineSettings
from groupwise.config.distributed import ZERO_BUCKET

SHARDS_WEIGHTS = ("fsdp2", "zero3")
SHARDS_GRADIENTS = ("fsdp2", "zero2", "zero3")
SHARDS_OPTIMIZER = ("fsdp2", "zero1", "zero2", "zero3")


@dataclass(frozen=True)
class Job:
    """One step of a recipe on `world` GPUs. Prompts and answers are of the whole step.

    Job(prompts=32, group_size=8, prompt_tokens=200, answer_tokens=256)
    """

    prompts: int
    group_size: int
    prompt_tokens: int
    answer_tokens: int
    """The length limit: what the cache and the longest row are made for."""
    mean_answer: float | None = None
    """Tokens of a typical answer (None: all have the limit, and exactly that)."""
    minibatches: int = 1
    epochs: int = 1
    tokens_per_microbatch: int = 16384
    shared_prefix: bool = True
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    quantization: Literal["int8", "nf4"] | None = None
    rank: int = 0
    """Of the adapter (0: none, all weights train)."""
    targets: tuple[str, ...] | None = None
    """Linear layers that the adapter is on (None: all)."""
    checkpointing: bool | Literal["offload"] = False
    compiled: bool = False
    """The update runs compiled layers (`compile=all`)."""
    entropy_grad: bool = False
    eight_bit: bool = False
    """Moments in 8 bits."""
    averaged: bool = False
    """A mean of the last steps' weights is kept."""
    offload_optimizer: bool = False
    offload_weights: bool = False
    reference: Literal["none", "copy", "adapter_off", "server"] = "none"
    reference_moves: bool = False
    """It follows the policy, and so needs it whole."""
    old_logprobs: bool = False
    """A pass for the log-probs before the first update."""
    engine: Literal["native", "transformers", "vllm", "elsewhere"] = "native"
    max_batch: int = 256
    samples_in_fp8: bool = False
    """The native engine holds a copy of the layers' weights in 8 bits."""
    engine_share: float = 0.0
    """vllm, in process: share of the GPU's memory that it takes while it samples."""
    engine_sleeps: bool = True
    """Whether it gives that back while the policy is updated."""
    sharding: str = "none"
    bucket: int = ZERO_BUCKET
    """Numbers that DeepSpeed sends together."""
    world: int = 1

    @property
    def number(self) -> int:
        """Bytes of a weight or an activation."""
        return 4 if self.precision == "fp32" else 2

    @property
    def whole_copy(self) -> bool:
        """Whether each GPU holds the policy whole (training/parallel.py), beside a shard or not."""
        sharded = self.world > 1 and self.sharding in SHARDS_WEIGHTS
        return not sharded or self.engine != "elsewhere" or self.rank > 0 or self.reference_moves

    @property
    def answers(self) -> int:
        return self.prompts * self.group_size

    @property
    def own_prompts(self) -> int:
        """Of the rank that has most."""
        return math.ceil(self.prompts / self.world)

    @property
    def own_answers(self) -> int:
        return self.own_prompts * self.group_size

    @property
    def typical(self) -> float:
        return self.answer_tokens if self.mean_answer is None else self.mean_answer

    @property
    def group_tokens(self) -> float:
        """A typical group: its prompt once, and answers whose last token is never read."""
        if not self.shared_prefix:
            return self.group_size * (self.prompt_tokens + self.typical - 1)
        return self.prompt_tokens + self.group_size * (self.typical - 1)

    @property
    def longest_row(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    def microbatches(self) -> tuple[int, ...]:
        """Tokens of each micro-batch of an optimizer step, on one GPU; all but the last are full.

        Answers of one length are packed as batch.py packs them; answers of many lengths fill a
        micro-batch completely.
        """
        groups = max(1, math.ceil(self.own_prompts / self.minibatches))
        budget = self.tokens_per_microbatch
        if self.mean_answer is not None:
            total = math.ceil(groups * self.group_tokens)
            return _filled(total, max(budget, min(self.longest_row, total)))
        if self.shared_prefix and self.group_tokens <= budget:
            at_once = int(budget // self.group_tokens)
            return tuple(int(n * self.group_tokens) for n in _filled(groups, at_once))
        if not self.shared_prefix:
            row = self.longest_row - 1
            return tuple(n * row for n in _filled(groups * self.group_size, budget // row))
        row = max(self.answer_tokens - 1, 1)
        pieces = _filled(self.group_size, (budget - self.prompt_tokens) // row)
        return _packed([self.prompt_tokens + n * row for n in pieces] * groups, budget)


def _packed(pieces: Sequence[int], budget: int) -> tuple[int, ...]:
    """Longest first, as many as fit: _packed([5, 2, 5, 2], 6) == (5, 5, 4)"""
    sizes: list[int] = []
    room = 0
    for piece in sorted(pieces, reverse=True):
        if piece > room:
            sizes.append(0)
            room = budget
        sizes[-1] += piece
        room -= piece
    return tuple(sizes)


def _filled(count: int, at_once: int) -> tuple[int, ...]:
    """_filled(7, 3) == (3, 3, 1)"""
    at_once = max(1, min(at_once, count))
    full, rest = divmod(count, at_once)
    return (at_once,) * full + ((rest,) if rest else ())


def job_of(config: Config, *, on_gpu: bool = True, world: int = 1) -> Job:
    """A recipe's job on `world` GPUs. Prompts and answers are taken to be as long as they may be,
    so that this is what a step costs at most."""
    batch, rollout, objective = config.batch, config.rollout, config.algorithm
    split = config.distributed
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if on_gpu else "fp32"
    adapter, reference = config.adapter, "none"
    if objective.needs_reference:
        elsewhere = config.reference.kind in ("server", "process")
        reference = "server" if elsewhere else "copy"
        if adapter is not None and reference == "copy":
            reference = "adapter_off"
    here = config.place.kind == "here"
    vllm = config.engine if here and isinstance(config.engine, VllmEngineSettings) else None
    return Job(
        prompts=batch.prompts,
        group_size=batch.group_size,
        prompt_tokens=rollout.max_prompt_tokens,
        answer_tokens=rollout.max_completion_tokens,
        mean_answer=float(rollout.max_completion_tokens),
        minibatches=batch.minibatches,
        epochs=batch.epochs,
        tokens_per_microbatch=batch.tokens_per_microbatch,
        shared_prefix=batch.layout != "padded",
        precision=precision,
        quantization=config.quantization,
        rank=0 if adapter is None else adapter.rank,
        targets=None if adapter is None or isinstance(adapter.targets, str) else adapter.targets,
        checkpointing=config.gradient_checkpointing,
        compiled=on_gpu and config.compiles_training,
        entropy_grad=objective.uses_entropy,
        eight_bit=config.optimizer.kind == "adamw_8bit",
        averaged=config.optimizer.average > 0,
        offload_optimizer=config.optimizer.offload
        or (world > 1 and (split.offload_optimizer or split.offload_parameters)),
        offload_weights=world > 1 and split.offload_parameters,
        reference=reference,
        reference_moves=config.reference_moves,
        old_logprobs=config.needs_old_logprobs,
        engine=_engine(config),
        max_batch=config.engine.max_batch,
        samples_in_fp8=config.samples_in_fp8,
        engine_share=vllm.memory_share if vllm else 0.0,
        engine_sleeps=vllm is not None and vllm.sleep,
        sharding="none" if world == 1 else split.kind.replace("none", "ddp"),
        bucket=split.bucket_size,
        world=world,
    )


def _engine(config: Config) -> Literal["native", "transformers", "vllm", "elsewhere"]:
    """Samplers in processes of their own have memory of their own: they are not planned here."""
    kind = config.engine.kind
    if config.place.kind != "here":
        return "elsewhere"
    if kind == "transformers":
        return "transformers"
    return "vllm" if kind == "vllm" else "native"
