"""What to change so that a plan fits: the smallest change first.

First what leaves the result as it is: smaller micro-batches, recomputing, sharding, offloading.
Then moments in 8 bits, then an adapter, then 4-bit weights under it: those train something else.
What several processes cannot be combined with (training/parallel.py) is not proposed to them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from groupwise.check.plan.estimate import Plan, make_plan
from groupwise.check.plan.job import SHARDS_WEIGHTS, Job

SettingChange = tuple[tuple[str, ...], Mapping[str, Any]]
"""Settings as the command line takes them, and the fields of a job that they change."""


@dataclass(frozen=True)
class Advice:
    settings: tuple[str, ...]
    plan: Plan


def advise(plan: Plan) -> list[Advice]:
    """Settings that make it fit, with the plans that result; empty where it fits, or nothing helps.

    The first changes as little of the result as possible. Others change more and are faster.
    """
    advice: list[Advice] = []
    gathered: list[SettingChange] = []
    for tier in [] if plan.fits else tiers(plan.job):
        gathered += tier
        best = _single(plan, tier) or (None if advice else _several(plan, gathered))
        if best and (not advice or best.plan.step < 0.8 * advice[-1].plan.step):
            advice.append(best)
    return advice


def _single(plan: Plan, tier: Sequence[SettingChange]) -> Advice | None:
    """The fastest of the changes that are enough alone."""
    tried = [_with(plan, [change]) for change in tier]
    enough = [advice for advice in tried if advice.plan.fits and _possible(advice.plan.job)]
    return min(enough, key=lambda advice: advice.plan.step, default=None)


def _several(plan: Plan, changes: Sequence[SettingChange]) -> Advice | None:
    """Changes added up in order until it fits; those that go with none before are left out."""
    chosen: list[SettingChange] = []
    for change in changes:
        changed = _with(plan, [*chosen, change]).plan
        if _possible(changed.job):
            chosen.append(change)
            if changed.fits:
                return _least(plan, chosen)
    return None


def _possible(job: Job) -> bool:
    """training/parallel.py: ranks that hold a model together have plain weights and moments."""
    alone = job.offload_optimizer and job.sharding == "fsdp2" and not job.offload_weights
    sharded = job.world > 1 and job.sharding != "ddp"
    return not (sharded and (job.eight_bit or job.quantization or alone))


def _least(plan: Plan, changes: Sequence[SettingChange]) -> Advice:
    """Without the changes that it fits without, the largest change left out first."""
    needed = list(changes)
    for change in reversed(changes):
        without = [other for other in needed if other is not change]
        if _with(plan, without).plan.fits:
            needed = without
    return _with(plan, needed)


def _with(plan: Plan, changes: Sequence[SettingChange]) -> Advice:
    job, settings = plan.job, {}
    for words, fields in changes:
        job = replace(job, **fields)
        settings |= {word.partition("=")[0]: word for word in words}
    return Advice(tuple(settings.values()), make_plan(plan.shape, job, plan.gpu))


def tiers(job: Job) -> Iterator[list[SettingChange]]:
    """Changes of like consequence together, as far as the job does not have them already."""
    yield list(_same_result(job))
    if not (job.eight_bit or job.offload_optimizer):
        yield [(("optimizer.kind=adamw_8bit",), {"eight_bit": True})]
    reference = "adapter_off" if job.reference == "copy" else job.reference
    adapted = {"rank": job.rank or 16, "reference": reference}
    if not job.rank:
        yield [(("adapter=lora",), adapted)]
    if not job.quantization:
        yield [(("adapter=lora", "quantization=nf4"), {**adapted, "quantization": "nf4"})]


def _same_result(job: Job) -> Iterator[SettingChange]:
    if not job.checkpointing:
        yield ("gradient_checkpointing=true",), {"checkpointing": True}
    tokens = job.tokens_per_microbatch
    while tokens // 2 >= job.longest_row:
        tokens //= 2
        yield (f"batch.tokens_per_microbatch={tokens}",), {"tokens_per_microbatch": tokens}
    if job.world > 1 and job.sharding not in SHARDS_WEIGHTS:
        yield ("distributed.kind=fsdp2",), {"sharding": "fsdp2"}
    rows = min(job.max_batch, job.own_answers)
    if rows >= 16:
        yield (f"engine.max_batch={rows // 4}",), {"max_batch": rows // 4}
    if job.checkpointing != "offload":
        yield ("gradient_checkpointing=offload",), {"checkpointing": "offload"}
    if not job.offload_optimizer:
        yield ("optimizer.offload=true",), {"offload_optimizer": True}
    if job.world > 1 and not job.offload_optimizer:
        words = ("distributed.kind=fsdp2", "distributed.offload_parameters=true")
        yield words, {"sharding": "fsdp2", "offload_optimizer": True, "offload_weights": True}
