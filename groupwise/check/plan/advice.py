"""What to change so that a plan fits: the least that does it, dearest last.

First what leaves the result as it is: smaller micro-batches, recomputing, sharding, offloading.
Then moments in 8 bits, then an adapter, then 4-bit weights under it: those train something else.
What several processes cannot be combined with (training/parallel.py) is not proposed to them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from groupwise.check.plan.estimate import Plan, make_plan
from groupwise.check.plan.job import Job

Change = tuple[tuple[str, ...], Callable[[Job], Job]]
"""Settings as the command line takes them, and what they do to a job."""


@dataclass(frozen=True)
class Advice:
    settings: tuple[str, ...]
    plan: Plan


def advise(plan: Plan) -> list[Advice]:
    """Settings that make it fit, with the plans that result; empty where it fits, or nothing helps.

    The first changes as little of the result as possible. Others change more and are faster.
    """
    found: list[Advice] = []
    gathered: list[Change] = []
    for tier in [] if plan.fits else tiers(plan.job):
        gathered += tier
        best = _single(plan, tier) or (None if found else _several(plan, gathered))
        if best and (not found or best.plan.step < 0.8 * found[-1].plan.step):
            found.append(best)
    return found


def _single(plan: Plan, tier: Sequence[Change]) -> Advice | None:
    """The fastest of the changes that are enough alone."""
    tried = [_with(plan, [change]) for change in tier]
    enough = [advice for advice in tried if advice.plan.fits and _possible(advice.plan.job)]
    return min(enough, key=lambda advice: advice.plan.step, default=None)


def _several(plan: Plan, changes: Sequence[Change]) -> Advice | None:
    """Changes added up in order until it fits; those that go with none before are left out."""
    chosen: list[Change] = []
    for change in changes:
        found = _with(plan, [*chosen, change])
        if _possible(found.plan.job):
            chosen.append(change)
            if found.plan.fits:
                return _least(plan, chosen)
    return None


def _possible(job: Job) -> bool:
    """training/parallel.py: ranks that hold a model together have plain weights and moments."""
    alone = job.offload_optimizer and job.sharding == "fsdp2" and not job.offload_weights
    return not (_sharded(job) and (job.eight_bit or job.quantization or alone))


def _least(plan: Plan, changes: Sequence[Change]) -> Advice:
    """Without the changes that it fits without, the dearest left out first."""
    needed = list(changes)
    for change in reversed(changes):
        without = [other for other in needed if other is not change]
        if _with(plan, without).plan.fits:
            needed = without
    return _with(plan, needed)


def _with(plan: Plan, changes: Sequence[Change]) -> Advice:
    job, settings = plan.job, {}
    for words, change in changes:
        job = change(job)
        settings |= {word.partition("=")[0]: word for word in words}
    return Advice(tuple(settings.values()), make_plan(plan.shape, job, plan.gpu))


def tiers(job: Job) -> Iterator[list[Change]]:
    """Changes of like consequence together, as far as the job does not have them already."""
    yield list(_same_result(job))
    if not (job.eight_bit or job.offload_optimizer):
        yield [(("optimizer.kind=adamw_8bit",), lambda job: replace(job, eight_bit=True))]
    if not job.rank:
        yield [(("adapter=lora",), _adapted)]
    if not job.quantization:
        four = ("adapter=lora", "quantization=nf4")
        yield [(four, lambda job: replace(_adapted(job), quantization="nf4"))]


def _same_result(job: Job) -> Iterator[Change]:
    if not job.checkpointing:
        yield (("gradient_checkpointing=true",), lambda job: replace(job, checkpointing=True))
    smallest, tokens = job.longest_row, job.tokens_per_microbatch
    while tokens // 2 >= smallest:
        tokens //= 2
        words = (f"batch.tokens_per_microbatch={tokens}",)
        yield words, lambda job, tokens=tokens: replace(job, tokens_per_microbatch=tokens)
    if job.world > 1 and job.sharding not in ("fsdp2", "zero3"):
        yield (("distributed.kind=fsdp2",), lambda job: replace(job, sharding="fsdp2"))
    slots = min(job.max_batch, job.own_answers)
    if slots >= 16:
        few = slots // 4
        words = (f"engine.max_batch={few}",)
        yield words, lambda job: replace(job, max_batch=few)
    if job.checkpointing != "offload":
        offload: Change = (
            ("gradient_checkpointing=offload",),
            lambda job: replace(job, checkpointing="offload"),
        )
        yield offload
    if not job.offload_optimizer:
        words = ("optimizer.offload=true",)
        yield words, lambda job: replace(job, offload_optimizer=True)
    if job.world > 1 and not job.offload_optimizer:
        split: Change = (
            ("distributed.kind=fsdp2", "distributed.offload_parameters=true"),
            lambda job: replace(
                job, sharding="fsdp2", offload_optimizer=True, offload_weights=True
            ),
        )
        yield split


def _sharded(job: Job) -> bool:
    return job.world > 1 and job.sharding != "ddp"


def _adapted(job: Job) -> Job:
    reference = "adapter_off" if job.reference == "copy" else job.reference
    return replace(job, rank=job.rank or 16, reference=reference)
