"""Bytes that a GPU sends over its link in a step, by purpose.

A ring moves (W - 1) / W of the whole through every GPU of W to gather it or to scatter its sum, and
twice that to sum it everywhere. Weights travel in the policy's precision, gradients in fp32.
FSDP2 and ZeRO-3 gather all weights twice for each micro-batch, forward and backward, and scatter
its gradient; a pass for old log-probs gathers them once more.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.check.plan.gpus import GPUS_A_MACHINE, Gpu
from groupwise.check.plan.job import SHARDS_GRADIENTS, SHARDS_OPTIMIZER, SHARDS_WEIGHTS, Job
from groupwise.check.plan.memory import trained
from groupwise.check.plan.shapes import Shape
from groupwise.policy.sizes import GRADIENT_BYTES, MASTER_BYTES

ROLLOUT_BYTES = 32
"""A sampled token as JSON: its id, and its log-prob in full."""
COLLECTIVES = 0.8
"""Share of a link that collectives reach."""


@dataclass(frozen=True)
class Traffic:
    """Bytes by purpose, sent by each GPU in a step."""

    parts: Mapping[str, float]
    pushed: float = 0.0
    """To each sampler in a process of its own, by the first GPU, after each update."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def seconds(self, gpu: Gpu, world: int) -> float:
        """Nothing hidden behind computing, and one sampler: most of it may be hidden in fact."""
        return self.total / collective_bandwidth(gpu, world) + self.pushed / gpu.network


def collective_bandwidth(gpu: Gpu, world: int) -> float:
    """Bytes a second that a GPU sends in a collective.

    Between machines each ring crosses to the next machine once, and there are as many rings as
    network cards: what a machine needs comes in over all of them.
    """
    reached = gpu.link
    if world > GPUS_A_MACHINE:
        reached = min(gpu.link, GPUS_A_MACHINE * gpu.network)
    return COLLECTIVES * reached


def traffic(shape: Shape, job: Job) -> Traffic:
    """Everything that passes between the `world` GPUs in one step."""
    pushed = push_bytes(shape, job) if job.engine == "elsewhere" else 0.0
    if job.world == 1 or job.sharding == "none":
        return Traffic({}, pushed)
    steps = job.epochs * job.minibatches
    passes = steps * len(job.microbatches())
    count, around = trained(shape, job), (job.world - 1) / job.world
    weights, gradient = shape.parameters * job.number, count * GRADIENT_BYTES
    parts: dict[str, float] = {}
    if job.sharding in SHARDS_WEIGHTS:
        forward = job.minibatches * len(job.microbatches()) if job.old_logprobs else 0
        parts["weights gathered"] = weights * (2 * passes + forward)
        parts["gradients scattered"] = gradient * passes
        # FSDP2's shards are fp32, and are gathered as they are for the whole copy.
        parts["whole copy"] = count * (MASTER_BYTES if job.sharding == "fsdp2" else job.number)
    elif job.sharding in SHARDS_OPTIMIZER:
        often = passes if job.sharding in SHARDS_GRADIENTS else steps
        parts["gradients scattered"] = gradient * often
        parts["weights gathered"] = count * job.number * steps
    else:
        parts["gradients summed"] = 2 * gradient * steps
    parts["rollouts"] = rollout_bytes(job)
    return Traffic({name: around * size for name, size in parts.items()}, pushed)


def rollout_bytes(job: Job) -> float:
    """A GPU's own answers, which it sends to the first one for the rollout files."""
    return job.answers * job.typical * ROLLOUT_BYTES / job.world


def push_bytes(shape: Shape, job: Job) -> float:
    """Weights to one sampler in a process of its own after an update: the adapter's alone."""
    return (trained(shape, job) if job.rank else shape.parameters) * job.number
