"""Where a step's time goes: what computes, when nothing does, and how far away the floor is.

    profile = make_profile(parts, state)
    profile.update.seconds, profile.update.busy, profile.update.kinds["attention"]

The floor is work that no implementation can avoid, at the speed of one large matrix product and
one large copy on this machine: nobody reaches it.
"""

import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from groupwise.check.peak import Peak, measure_peak
from groupwise.check.plan import Shape, shape_of
from groupwise.errors import ModelError
from groupwise.load import Parts
from groupwise.policy.footprint import footprint
from groupwise.training.collect import collect
from groupwise.training.state import TrainState
from groupwise.training.step import grpo_step
from groupwise.types import Group

KINDS: Mapping[str, str] = {
    "attention": "flash|fmha|attention|attn|page_",
    "softmax over the vocabulary": "softmax|logsumexp|nll_loss|cross_entropy|logprob",
    "matrix products": "gemm|gemv|cutlass|nvjet|xmma|matmul|linear|::b?mm$|::addb?mm|splitk",
    "optimizer": "adam|foreach|multi_tensor|::lerp|::addcdiv|::addcmul",
    "copies": "memcpy|memset|copy|::cat$|catarray|gather|scatter|index|embedding",
}
"""Kinds of operations, by what their names contain; the first that fits counts."""
REST = "norms, elementwise and others"
ADAMW_BYTES = 28
"""A weight, its gradient and two moments are read, three of them written, in fp32."""


@dataclass(frozen=True)
class Phase:
    """One part of a step."""

    seconds: float
    busy: float
    """The share of them in which the device (on a CPU: torch) computed."""
    kinds: Mapping[str, float]
    """The share of each kind of operation in what was computed."""
    floor: float | None
    """Seconds; None for a model whose work cannot be counted from its shape."""
    mfu: float | None
    """Floating-point operations of the model, as a share of what the machine could do."""


@dataclass(frozen=True)
class Profile:
    prompts: int
    answers: int
    tokens: int
    """Sampled."""
    peak: Peak
    sampling: Phase
    update: Phase


@dataclass(frozen=True)
class Work:
    """What a phase has to do at least: operations, and bytes that are read and written."""

    flops: float
    bytes: float

    def floor(self, peak: Peak) -> float:
        return max(self.flops / peak.flops, self.bytes / peak.bytes)


def make_profile(parts: Parts, state: TrainState) -> Profile:
    """A step of `small_parts`, sampled and learned from: once by the clock, once under torch's
    profiler. A step was made before, to warm up."""
    device = parts.policy.device

    def again(work: Callable[[], Any]) -> Callable[[], Any]:
        def repeated() -> Any:
            state.step = state.cursor = 0
            return work()

        return repeated

    rollout = collect(parts, state)
    sampling = _measured(again(lambda: collect(parts, state)), device)
    update = _measured(again(lambda: grpo_step(parts, state, rollout)), device)
    peak = measure_peak(device.type)
    groups = rollout.groups
    sampling_work, update_work = _work(parts, groups)
    return Profile(
        prompts=len(groups),
        answers=sum(len(group.completions) for group in groups),
        tokens=sum(len(c.tokens) for group in groups for c in group.completions),
        peak=peak,
        sampling=_with_floor(sampling, sampling_work, peak),
        update=_with_floor(update, update_work, peak),
    )


def _measured(work: Callable[[], Any], device: torch.device) -> Phase:
    seconds = _seconds(work, device)
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, acc_events=True) as recorded:
        under_profiler = _seconds(work, device)
    # Kernels take as long under the profiler; operations of a CPU are slowed down with the rest.
    whole = seconds if device.type == "cuda" else under_profiler
    busy, kinds = summed(recorded.events() or [], device.type)
    return Phase(seconds, min(busy / whole, 1.0), kinds, None, None)


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def summed(events: Iterable[Any], device: str) -> tuple[float, dict[str, float]]:
    """Seconds in which something computed, and each kind's share of the operations."""
    wanted = DeviceType.CUDA if device == "cuda" else DeviceType.CPU
    spans: list[tuple[float, float]] = []
    kinds = dict.fromkeys([*KINDS, REST], 0.0)
    for event in events:
        # On a CPU, Python's own functions are recorded too: operations have "::" in their names.
        if event.device_type != wanted or (device != "cuda" and "::" not in event.name):
            continue
        start, end = event.time_range.start, event.time_range.end
        spans.append((start, end))
        own = end - start if device == "cuda" else event.self_cpu_time_total
        kinds[kind_of(event.name)] += own
    total = sum(kinds.values()) or 1.0
    return covered(spans) / 1e6, {name: value / total for name, value in kinds.items()}


def kind_of(name: str) -> str:
    """kind_of("aten::mm") == "matrix products" """
    fits = (kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE))
    return next(fits, REST)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of what the spans cover together."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _with_floor(phase: Phase, work: Work | None, peak: Peak) -> Phase:
    if work is None:
        return phase
    mfu = work.flops / phase.seconds / peak.flops
    return replace(phase, floor=work.floor(peak), mfu=mfu)


def _work(parts: Parts, groups: list[Group]) -> tuple[Work | None, Work | None]:
    """Of sampling, and of the update."""
    config, objective = parts.config, parts.config.algorithm
    try:
        shape = shape_of(config.model)
    except ModelError:
        return None, None
    held = footprint(parts.policy.model, config.optimizer)
    forward, read = _forward(shape, groups), _read(shape, groups, held.weights, parts.policy.rounds)
    # Groups without spread are not computed, unless KL or entropy acts on them.
    acting = objective.uses_entropy or objective.kl_in_loss
    learned = _forward(shape, [group for group in groups if acting or group.has_spread])
    steps = config.batch.epochs * config.batch.minibatches if learned else 0
    passes = 2 if config.adapter is not None else 3  # an adapter's base gets no gradient
    flops = passes * learned * config.batch.epochs
    return Work(forward, read), Work(flops, steps * ADAMW_BYTES * held.trainable)


def _forward(shape: Shape, groups: list[Group]) -> float:
    """Operations of one pass over every prompt, once for its group, and every answer."""
    tokens = predicted = pairs = 0.0
    for group in groups:
        prompt = len(group.prompt_tokens)
        lengths = [len(completion.tokens) for completion in group.completions]
        tokens += prompt + sum(lengths)
        predicted += sum(lengths)
        pairs += prompt**2 / 2 + sum(n * (prompt + n / 2) for n in lengths)
    return shape.flops(tokens, predicted, pairs)


def _read(shape: Shape, groups: list[Group], weights: int, half: bool) -> float:
    """Bytes that sampling reads: the weights for each token of the longest answer; keys and values
    of a prompt once for its group at each token, those of an answer for itself."""
    lengths = [[len(c.tokens) for c in group.completions] for group in groups]
    longest = max(itertools.chain.from_iterable(lengths), default=0)
    shared = sum(
        len(group.prompt_tokens) * max(own, default=0)
        for group, own in zip(groups, lengths, strict=True)
    )
    alone = sum(n * n / 2 for own in lengths for n in own)
    kv_bytes = 2 * shape.layers * shape.kv * (2 if half else 4)
    return weights * longest + (shared + alone) * kv_bytes
