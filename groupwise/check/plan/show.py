"""A plan as text: what fits, by part, and what to change where it does not."""

from collections.abc import Mapping

from groupwise.check.plan.advice import Advice, advise
from groupwise.check.plan.estimate import Plan
from groupwise.check.plan.gpus import GIB
from groupwise.check.plan.job import Job

ACCURACY = (
    "on an H200 steps took the planned memory +- 15 %, the time within 1.5 x: docs/scaling.md"
)


def plan_text(plan: Plan) -> str:
    """Plain lines, for a terminal or a page."""
    held = plan.memory
    blocks = [
        f"plan       {title(plan)}",
        f"memory     {verdict(plan)}",
        memory_table(plan),
        f"time       about {duration(plan.step)} a step, rewards apart: {named(plan.seconds)}",
    ]
    if held.host:
        blocks.append(f"CPU memory {held.host / GIB:.1f} GiB for each GPU, for what is offloaded")
    if plan.traffic.parts:
        sent = ", ".join(f"{name} {gigabytes(b)}" for name, b in plan.traffic.parts.items())
        blocks.append(f"network    each GPU sends {gigabytes(plan.traffic.total)} a step: {sent}")
    if plan.traffic.pushed:
        blocks.append(f"samplers   each gets {gigabytes(plan.traffic.pushed)} after an update")
    if not plan.gpu.is_cpu:
        blocks.append(f"measured   {ACCURACY}")
    if not plan.fits:
        blocks += [
            f"{'or' if number else 'try':<11}{line}" for number, line in enumerate(remedies(plan))
        ]
    return "\n".join(blocks)


def title(plan: Plan) -> str:
    job, shape = plan.job, plan.shape
    count = f"{job.world} x " if job.world > 1 else ""
    split = f" ({job.sharding})" if job.world > 1 else ""
    return (
        f"{shape.name}: {weights(shape.parameters)} parameters, {held_as(job)}, on "
        f"{count}{plan.gpu.name}{split}; {job.prompts} x {job.group_size} answers of up to "
        f"{job.prompt_tokens} + {job.answer_tokens} tokens"
    )


def held_as(job: Job) -> str:
    words = [f"{job.quantization} and {job.precision}" if job.quantization else job.precision]
    words.append(f"LoRA of rank {job.rank}" if job.rank else "all weights train")
    if job.checkpointing:
        words.append("checkpointing" + " with offload" * (job.checkpointing == "offload"))
    return ", ".join(words)


def verdict(plan: Plan) -> str:
    share = f"{plan.peak_gib:.1f} of {plan.gpu.memory / GIB:.1f} GiB"
    return f"fits: {share}" if plan.fits else f"DOES NOT FIT: {share}"


def memory_table(plan: Plan) -> str:
    """GiB of each part in both phases, each at its fullest moment."""
    held = plan.memory
    names = list(dict.fromkeys([*held.sampling, *held.update]))
    rows = [("", "sampling", "update")]
    for name in names:
        rows.append((name, _gib(held.sampling.get(name)), _gib(held.update.get(name))))
    if held.slack:
        rows.append(("context, holes", _gib(held.slack), _gib(held.slack)))
    sums = [sum(parts.values()) + held.slack for parts in (held.sampling, held.update)]
    rows.append(("GiB in all", _gib(sums[0]), _gib(sums[1])))
    return "\n".join(f"  {name:<18}{a:>9}{b:>9}" for name, a, b in rows)


def remedies(plan: Plan) -> list[str]:
    advice = advise(plan)
    if not advice:
        more = 2 * plan.job.world
        return [
            f"nothing of ours makes it fit on {plan.gpu.name}: more GPUs (--gpus {more}), larger "
            "ones, shorter answers, or a smaller model"
        ]
    return [_remedy(one, plan) for one in advice]


def _remedy(advice: Advice, plan: Plan) -> str:
    slower = advice.plan.step / plan.step
    cost = f", {slower:.1f} x the time" if slower > 1.05 else ""
    return f"{' '.join(advice.settings)}  ({advice.plan.peak_gib:.1f} GiB{cost})"


def named(values: Mapping[str, float]) -> str:
    """What is worth naming: at least a hundredth of the whole."""
    least = sum(values.values()) / 100
    return ", ".join(f"{name} {duration(value)}" for name, value in values.items() if value > least)


def weights(count: int) -> str:
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


def duration(seconds: float) -> str:
    if seconds >= 100:
        return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def gigabytes(count: float) -> str:
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= size:
            return f"{count / size:.{2 if count < 10 * size else 0}f} {unit}"
    return f"{count / 1e3:.0f} kB"


def _gib(size: float | None) -> str:
    return "" if size is None else f"{size / GIB:.2f}"
