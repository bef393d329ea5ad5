"""The parts of a GPU's memory while sampling and while updating, in bytes.

It follows the code that allocates: what autograd keeps of a layer, what the optimizer holds, how
large the KV cache of sampling is and for how long. Two things to know: the cache of the native
engine stays between steps, so it counts in the update too; and the backward pass has several
possible peaks, of which the largest counts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.check.plan.gpus import GIB, Gpu
from groupwise.check.plan.job import SHARDS_GRADIENTS, SHARDS_OPTIMIZER, SHARDS_WEIGHTS, Job
from groupwise.check.plan.shapes import Shape
from groupwise.policy.limits import chunk_logits, kept_logits
from groupwise.policy.sizes import GRADIENT_BYTES, MASTER_BYTES, MOMENT_BYTES, NF4_BYTES
from groupwise.rollout.native.limits import CACHE_SHARE, MULTI_STEP, PAGE, PREFILL_TOKENS

Parts = Mapping[str, float]

WORKSPACE, GRAPH_WORKSPACES = 0.15 * GIB, 0.3 * GIB
"""Of the matrix library on CUDA; a stream more for each batch size that graphs are captured for."""
CONTEXT = 0.6 * GIB
"""CUDA itself, outside of torch's count."""
SLACK = 0.07
"""Share of temporary tensors: fragmentation in torch's allocator (measured: 4 to 9 %)."""
PROCESS = 0.5 * GIB
"""On a CPU: Python and its libraries."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU by part, at the peak of each phase."""

    sampling: Parts
    update: Parts
    slack: float
    """CUDA's context and fragmentation of the allocator, beside what tensors take."""
    host: float = 0.0
    """CPU memory for what is offloaded."""

    @property
    def tensors(self) -> float:
        """What torch.cuda.max_memory_allocated says."""
        return max(sum(self.sampling.values()), sum(self.update.values()))

    @property
    def peak(self) -> float:
        return self.tensors + self.slack


@dataclass(frozen=True)
class Held:
    """What is there all the time, and the gradients that come and go."""

    parts: Parts
    gradients: float
    host: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def memory(shape: Shape, job: Job, gpu: Gpu) -> Memory:
    held = held_bytes(shape, job)
    cache = cache_bytes(shape, job, gpu, held.total)
    work = WORKSPACE + GRAPH_WORKSPACES * (job.mean_answer is not None)
    libraries = {"work space": PROCESS if gpu.is_cpu else work}
    stays = cache if job.engine == "native" else 0.0
    vllm = job.engine_share * gpu.memory
    sampling = {
        **held.parts,
        "cache": cache,
        "vLLM": vllm,
        "activations": sampling_bytes(shape, job),
        **libraries,
    }
    first, *later = job.microbatches()
    moments = update_moments(shape, job, gpu, first, 0.0, held.gradients)
    if later:  # the gradient of what came before is there already
        largest = max(later)
        moments += update_moments(shape, job, gpu, largest, held.gradients, held.gradients)
    fullest = max(moments, key=lambda parts: sum(parts.values()))
    awake = 0.0 if job.engine_sleeps else vllm
    update = {**held.parts, "cache": stays, "vLLM": awake, **fullest, **libraries}
    coming = max(sum(update.values()) - awake, sum(sampling.values()) - vllm) - held.total - stays
    slack = 0.0 if gpu.is_cpu else CONTEXT + SLACK * coming
    return Memory(_present(sampling), _present(update), slack, held.host)


def weights_bytes(shape: Shape, job: Job) -> float:
    """The policy, with its adapter. Embeddings, norms, biases and the head are never quantised."""
    matrices = shape.layers * shape.linear_layer
    rest = (shape.parameters - matrices) * job.number
    each = {"nf4": NF4_BYTES, "int8": 1.0}.get(job.quantization or "", job.number)
    scales = 4 * shape.layers * shape.rows if job.quantization == "int8" else 0
    adapter = trained(shape, job) * job.number if job.rank else 0
    return matrices * each + scales + rest + adapter


def trained(shape: Shape, job: Job) -> int:
    """How many weights train."""
    return shape.adapter(job.rank, job.targets) if job.rank else shape.parameters


def held_bytes(shape: Shape, job: Job) -> Held:
    """training/optim.py: fp32 masters of half-precision weights, fp32 gradients, two moments.

    Where weights are sharded and sampled from here, every GPU still has them whole in the policy's
    precision; with engines elsewhere it has its shard alone. FSDP2's shards are fp32 and are the
    masters at once, DeepSpeed has masters besides.
    """
    count, weights = trained(shape, job), weights_bytes(shape, job)
    split = job.world if job.sharding in SHARDS_OPTIMIZER else 1
    whole = job.sharding not in SHARDS_WEIGHTS or job.world == 1
    in_fp8 = job.samples_in_fp8 and job.engine == "native"
    masters = (
        MASTER_BYTES * count if job.precision != "fp32" or job.offload_optimizer or not whole else 0
    )
    moments = MOMENT_BYTES["adamw_8bit" if job.eight_bit else "adamw"] * count
    means = MASTER_BYTES * count if job.averaged else 0
    gradients = GRADIENT_BYTES * count / (job.world if job.sharding in SHARDS_GRADIENTS else 1)
    shards = 0.0
    if not whole:
        frozen = weights - count * job.number
        shards = (frozen if job.sharding == "fsdp2" else weights) / job.world
    optimizer = (masters + moments + means) / split
    offloaded = optimizer + gradients if job.offload_optimizer else 0.0
    parts: dict[str, float] = {
        "weights": weights if job.whole_copy else 0.0,
        "weights in 8 bits": float(shape.layers * shape.linear_layer) if in_fp8 else 0.0,
        "weight shards": 0.0 if job.offload_weights else shards,
        "masters": 0.0 if job.offload_optimizer else masters / split,
        "moments": 0.0 if job.offload_optimizer else moments / split,
        "averaged weights": 0.0 if job.offload_optimizer else means / split,
        "reference": weights if job.reference == "copy" else 0.0,
        "gathered layers": 0.0 if whole else gathered_bytes(shape, job),
        "buckets": bucket_bytes(count, job),
    }
    away = shards if job.offload_weights else 0.0
    return Held(parts, 0.0 if job.offload_optimizer else gradients, offloaded + away)


def gathered_bytes(shape: Shape, job: Job) -> float:
    """Shards put together for a pass: embeddings and head, a layer, and the next one ahead."""
    outer = shape.parameters - shape.layers * shape.layer
    return job.number * (2 * shape.layer + outer)


def bucket_bytes(count: int, job: Job) -> float:
    """DeepSpeed fills a bucket while it sends another; our own buckets are small."""
    if not job.sharding.startswith("zero") or job.world == 1:
        return 0.0
    return 2 * job.number * min(count, job.bucket)


def cache_bytes(shape: Shape, job: Job, gpu: Gpu, held: float) -> float:
    """Keys and values of the answers that are sampled at once, all of them at the length limit."""
    if job.engine in ("vllm", "elsewhere"):
        return 0.0
    token = 2 * shape.layers * shape.kv * (4 if gpu.is_cpu else job.number)
    rows = min(job.own_answers, job.max_batch)
    if job.engine == "transformers":  # a prompt for each answer
        return rows * (job.prompt_tokens + job.answer_tokens) * token
    context = 0.0 if gpu.is_cpu else CONTEXT
    share = CACHE_SHARE / 2 if gpu.is_cpu else CACHE_SHARE
    affordable = share * max(gpu.memory - context - held, 0)
    return min(held_tokens(job, rows, PAGE["cpu" if gpu.is_cpu else "cuda"]) * token, affordable)


def held_tokens(job: Job, rows: int, page: int) -> int:
    """Tokens that the pages of running answers hold: a group's full prompt pages are there once."""
    shared = job.prompt_tokens // page * page
    own = job.prompt_tokens - shared + job.answer_tokens + 2 * MULTI_STEP
    return math.ceil(rows / job.group_size) * shared + rows * math.ceil(own / page) * page


def sampling_bytes(shape: Shape, job: Job) -> float:
    """Prompts being computed, with the keys that are kept of them; or logits being drawn from."""
    if job.engine in ("vllm", "elsewhere"):
        return 0.0
    prompts = job.own_prompts * job.prompt_tokens
    tokens = min(max(PREFILL_TOKENS, job.prompt_tokens), prompts)
    kept = tokens * 2 * shape.layers * shape.kv * job.number
    layer = tokens * (4 * shape.hidden + job.number * (2 * shape.hidden + 3 * shape.intermediate))
    rows = min(job.own_answers, job.max_batch)
    drawn = rows * shape.vocab * (job.number + 8)
    return kept + max(layer, drawn) + unpacked(shape, job)


def unpacked(shape: Shape, job: Job) -> float:
    """The largest quantised matrix, whole again while it is multiplied by."""
    return job.number * shape.hidden * shape.intermediate if job.quantization else 0.0


def layer_kept(shape: Shape, job: Job, packed: bool | None = None) -> float:
    """Bytes that autograd keeps of one token in one layer.

    A norm keeps its input in fp32, the normalised input where its weight trains, and its output,
    which the next products need. Attention keeps queries, keys, values and its result; the MLP
    gate, its activation, up, and their product. Compiled layers compute half of that again. Where
    FlashAttention cannot take all sequences in one call (`packed`; not in fp32) they are copied
    out, and an answer's keys are joined to its prompt's.
    """
    hidden, inner, size = shape.hidden, shape.intermediate, job.number
    attention = size * 2 * (shape.attention + shape.kv) + 4 * shape.heads
    packed = job.precision != "fp32" if packed is None else packed
    if not packed:
        kv_repeats = job.group_size * job.longest_row / max(job.group_tokens, 1)
        attention += size * 2 * (shape.attention + shape.kv * kv_repeats)
    if job.compiled:
        return size * (4 * hidden + 3 * inner) + attention
    whole = 0 if job.rank else 1
    norms = 2 * hidden * (4 + size * whole + size)
    adapter = size * job.rank * len(job.targets or range(7))
    return norms + attention + size * 4 * inner + adapter


def layer_passing(shape: Shape, job: Job) -> float:
    """Gradients of one token inside a layer, at the MLP's gate, above what is kept by then."""
    return job.number * (2 * shape.intermediate + 3 * shape.hidden)


def kept_bytes(shape: Shape, job: Job, tokens: int) -> float:
    """Of all layers from the forward to the backward pass; checkpointing keeps inputs alone."""
    if job.checkpointing == "offload":
        return 0.0
    if job.checkpointing:
        return tokens * shape.layers * shape.hidden * job.number
    return tokens * shape.layers * layer_kept(shape, job)


def logits_bytes(shape: Shape, job: Job, gpu: Gpu, tokens: int) -> float:
    """One chunk of the head's output with what is computed from it, backward included; and those
    that are kept."""
    memory = None if gpu.is_cpu else gpu.memory
    chunk = max(1, chunk_logits(memory) // shape.vocab)
    count = min(tokens, chunk) * shape.vocab
    if job.entropy_grad and gpu.is_cpu:
        return count * (job.number + 24)
    kept = kept_logits(memory, job.number, not job.rank) // (chunk * shape.vocab) * chunk
    return (2 * count + min(kept, tokens - min(tokens, chunk)) * shape.vocab) * job.number


def update_moments(
    shape: Shape, job: Job, gpu: Gpu, tokens: int, before: float, gradients: float
) -> list[dict[str, float]]:
    """What comes and goes with a micro-batch, at each moment that may be the fullest.

    The forward pass is over and the head's gradient is computed; the last layer's is; nothing is
    left but the gradient of every weight, the embeddings' just added.
    """
    share = job.group_size * job.typical / max(job.group_tokens, 1)
    predicted = min(tokens, math.ceil(tokens * share))
    kept = kept_bytes(shape, job, tokens)
    last = tokens * shape.hidden * (4 + 2 * job.number) + predicted * shape.hidden * job.number
    head = 0.0 if job.rank else 2 * job.number * shape.head
    again = tokens * layer_kept(shape, job) if job.checkpointing else 0.0
    step = 0.0 if job.rank else 6 * shape.hidden * shape.intermediate
    passing = tokens * layer_passing(shape, job) + unpacked(shape, job) + step
    return [
        {
            "gradients": before + head,
            "activations": kept + last,
            "logits": logits_bytes(shape, job, gpu, predicted),
        },
        {"gradients": before + head, "activations": kept + again + passing},
        {"gradients": gradients + head, "activations": tokens * shape.hidden * job.number},
    ]


def _present(parts: Parts) -> Parts:
    return {name: size for name, size in parts.items() if size}
