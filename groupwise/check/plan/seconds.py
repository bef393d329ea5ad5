"""How long the parts of a step take, from what they move and multiply.

Sampling: each decode step reads all weights, the cache and little else, and launches kernels, a
fixed time a layer. Update: products at the speed of a large one, passes over activations and over
logits at the speed of memory, and a fixed time to launch a layer. The fixed factors were fitted to
the steps in benchmarks/results/ (one H200; two cores), which they meet within 1.5 times; GPUs that
were not measured differ by their bandwidth and FLOP/s alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.check.plan.gpus import Gpu
from groupwise.check.plan.job import SHARDS_OPTIMIZER, Job
from groupwise.check.plan.memory import layer_kept, trained, weights_bytes
from groupwise.check.plan.shapes import Shape

Seconds = Mapping[str, float]


@dataclass(frozen=True)
class Pace:
    """Factors on the ideal, and times that do not depend on sizes."""

    decode_layer: float
    """Seconds to launch a layer of a decode step."""
    token: float
    """Seconds that a sampled token costs in Python."""
    call: float
    """Seconds to begin and end sampling."""
    reads: float
    """Decode: how often longer than the pure reading of weights and cache."""
    products: float
    """How often longer than the FLOPs at the speed of one large product."""
    activations: float
    """Update: how often the bytes that are kept are read or written in all."""
    logits: float
    """Update: bytes read and written for each logit."""
    update_layer: float
    """Seconds to launch a layer forward and backward."""


CUDA = Pace(40e-6, 1e-6, 0.05, 1.0, 1.2, 8.0, 8.0, 2e-3)
CPU = Pace(0.2e-3, 1e-6, 0.05, 1.8, 2.1, 0.0, 0.0, 0.5e-3)
EAGER_DECODE_LAYER = 0.9e-3
"""transformers' generate: a layer of a decode step, launched from Python."""
ADAPTED_DECODE_LAYER = 60e-6
"""A layer of a decode step with an adapter on its seven matrices."""
ADAPTED = 1.5
"""Small passes of an update around an adapter's products: so many more than without."""
UNPACKING = 1.5
"""How often longer than the pure writing and reading it takes to make 4-bit matrices whole."""
OPTIMIZER_BYTES = 36
"""Read and written for each trained weight: gradient, master, moments, the clipping's pass."""


def seconds(shape: Shape, job: Job, gpu: Gpu) -> Seconds:
    """By part, on the GPU that has most to do. Samplers elsewhere have clocks of their own."""
    away = job.engine == "elsewhere"
    pace = CPU if gpu.is_cpu else CUDA
    forward = forward_seconds(shape, job, gpu, pace)
    parts = {
        "sampling": 0.0 if away else sampling_seconds(shape, job, gpu, pace),
        "old log-probs": forward if job.old_logprobs else 0.0,
        "reference": forward if job.reference in ("copy", "adapter_off") else 0.0,
        "update": job.epochs * update_seconds(shape, job, gpu, pace),
        "optimizer": job.epochs * job.minibatches * optimizer_seconds(shape, job, gpu),
    }
    return {name: value for name, value in parts.items() if value}


def sampling_seconds(shape: Shape, job: Job, gpu: Gpu, pace: Pace) -> float:
    """Waves of at most max_batch answers; a wave lasts as long as its longest answer."""
    rows = min(job.own_answers, job.max_batch)
    tokens = job.own_answers * job.typical
    # One wave decodes to the limit; later ones start as rows become free.
    steps = max(job.answer_tokens, tokens / rows)
    weights = shape.parameters * job.number
    if job.quantization:
        weights = weights_bytes(shape, job) + unpacking_bytes(shape, job)
    seen = job.prompt_tokens + job.typical / 2
    reads = steps * weights + tokens * seen * 2 * shape.layers * shape.kv * job.number
    flops = shape.flops(tokens, tokens, tokens * seen) + prompt_flops(shape, job)
    launch = ADAPTED_DECODE_LAYER if job.rank and not gpu.is_cpu else pace.decode_layer
    if job.engine == "transformers" and not gpu.is_cpu:
        launch = EAGER_DECODE_LAYER
    return (
        pace.call
        + steps * shape.layers * launch
        + tokens * pace.token
        + pace.reads * reads / gpu.copies
        + flops * (pace.products if gpu.is_cpu else 1.0) / gpu.products
    )


def unpacking_bytes(shape: Shape, job: Job) -> float:
    """Quantised matrices are written out whole and read again whenever they are multiplied by."""
    return UNPACKING * 2 * shape.layers * shape.linear_layer * job.number


def prompt_flops(shape: Shape, job: Job) -> float:
    tokens = job.own_prompts * job.prompt_tokens
    return shape.flops(tokens, job.own_prompts, tokens * job.prompt_tokens / 2)


def pass_flops(shape: Shape, job: Job) -> float:
    """One forward pass over the prompts and answers of this GPU."""
    tokens = job.own_prompts * job.group_tokens
    predicted = job.own_answers * job.typical
    seen = job.prompt_tokens + job.typical / 2
    shared = job.own_prompts * job.prompt_tokens**2 / 2
    return shape.flops(tokens, predicted, predicted * seen + shared)


def forward_seconds(shape: Shape, job: Job, gpu: Gpu, pace: Pace) -> float:
    """Log-probs without a gradient: a third of an update's work."""
    count = len(job.microbatches())
    launch = count * job.minibatches * shape.layers * pace.update_layer / 3
    return launch + pace.products * pass_flops(shape, job) / gpu.products


def update_seconds(shape: Shape, job: Job, gpu: Gpu, pace: Pace) -> float:
    """One epoch: forward, and backward with two products for each one forward.

    An adapter's base gets no gradient: one product instead of two. Checkpointing computes all
    layers once more, chunked logits the head.
    """
    count = len(job.microbatches())
    forward = pass_flops(shape, job)
    passes = 2 if job.rank else 3
    passes += 1 if job.checkpointing else 0
    tokens = job.own_prompts * job.group_tokens
    predicted = job.own_answers * job.typical
    head_again = 0 if job.checkpointing else 2 * shape.head * predicted
    kept = tokens * shape.layers * layer_kept(shape, job)
    again = (4 if job.checkpointing else 3) / 3 * (ADAPTED if job.rank else 1.0)
    launches = count * job.minibatches * shape.layers * pace.update_layer * again
    moved = pace.activations * kept * again + pace.logits * predicted * shape.vocab
    if job.quantization:
        moved += passes * count * unpacking_bytes(shape, job)
    products = pace.products * (passes * forward + head_again) / gpu.products
    return launches + products + moved / gpu.copies


def optimizer_seconds(shape: Shape, job: Job, gpu: Gpu) -> float:
    shards = job.world if job.sharding in SHARDS_OPTIMIZER else 1
    count = trained(shape, job) / shards
    if job.offload_optimizer and not gpu.is_cpu:
        # The CPU steps at its own bandwidth; gradients and weights cross the bus.
        return count * (OPTIMIZER_BYTES / 50e9 + 6 / 20e9)
    return OPTIMIZER_BYTES * count / gpu.copies
