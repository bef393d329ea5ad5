"""Fill the tables and outputs of docs/scaling.md from groupwise/plan and benchmarks/results/.

    python scripts/make_scaling_page.py

What stands between `<!-- NAME -->` and `<!-- end -->` is made here; the rest is written by hand.
"""

import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from groupwise.check.plan import GPUS, Job, Plan, job_of, make_plan, shape_of  # noqa: E402
from groupwise.check.plan.gpus import GIB  # noqa: E402
from groupwise.check.plan.show import duration, gigabytes, plan_text  # noqa: E402
from groupwise.recipe import parse  # noqa: E402
from planned import compared_steps, large_steps, plan_again  # noqa: E402

PAGE = ROOT / "docs" / "scaling.md"

ON_EIGHT = Job(64, 8, 512, 1024, mean_answer=700.0, world=8, checkpointing=True)
"""8 prompts a GPU, 8 answers each of 700 tokens on average and 1024 at most."""
ON_64 = replace(ON_EIGHT, prompts=512, world=64)
ON_512 = replace(ON_EIGHT, prompts=4096, world=512)

Line = tuple[str, str, Job]
PAPER: dict[str, list[Line]] = {
    "8 GPUs": [
        ("8b", "h100", replace(ON_EIGHT, rank=16, sharding="ddp")),
        ("8b", "h100", replace(ON_EIGHT, sharding="zero2")),
        ("8b", "h100", replace(ON_EIGHT, sharding="fsdp2")),
        ("32b", "h200", replace(ON_EIGHT, rank=16, sharding="ddp")),
        (
            "70b",
            "h100",
            replace(
                ON_EIGHT,
                rank=16,
                quantization="nf4",
                sharding="ddp",
                tokens_per_microbatch=8192,
                max_batch=32,
            ),
        ),
    ],
    "64 GPUs": [
        ("8b", "h100", replace(ON_64, sharding="zero2")),
        ("8b", "h100", replace(ON_64, sharding="fsdp2")),
        ("32b", "h200", replace(ON_64, sharding="fsdp2")),
        (
            "70b",
            "b200",
            replace(ON_64, rank=16, sharding="ddp", tokens_per_microbatch=8192, max_batch=32),
        ),
    ],
    "512 GPUs": [
        ("8b", "h100", replace(ON_512, sharding="zero2")),
        ("32b", "h200", replace(ON_512, sharding="fsdp2")),
        (
            "70b",
            "b200",
            replace(ON_512, sharding="fsdp2", engine="elsewhere", tokens_per_microbatch=8192),
        ),
        ("70b", "h100", replace(ON_512, sharding="fsdp2", engine="elsewhere")),
        ("70b", "h100", replace(ON_512, sharding="fsdp2")),
    ],
}


def example(*settings: str, gpu: str, gpus: int = 1) -> str:
    """What `groupwise check` prints of a plan."""
    config = parse({}, settings)
    plan = make_plan(shape_of(config.model), job_of(config, world=gpus), GPUS[gpu])
    return f"```text\n{plan_text(plan)}\n```"


def paper(lines: Sequence[Line]) -> str:
    rows = [
        "| model | trains | GPU, kind | GiB a GPU | weights | gradients | whole copy or push "
        "| rollouts | sampling, update, communication |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, gpu, job in lines:
        plan = make_plan(shape_of(f"shape:{name}"), job, GPUS[gpu])
        rows.append("| " + " | ".join(_paper_cells(plan)) + " |")
    return "\n".join(rows)


def _paper_cells(plan: Plan) -> list[str]:
    job, sent = plan.job, plan.traffic.parts
    trains = "all weights"
    if job.rank:
        trains = f"LoRA{', nf4' if job.quantization else ''}"
    memory = f"{plan.peak_gib:.0f} of {plan.gpu.memory / GIB:.0f}"
    copy = gigabytes(sent["whole copy"]) if "whole copy" in sent else ""
    if plan.traffic.pushed:
        copy += f", {gigabytes(plan.traffic.pushed)} to each sampler"
    gradients = sent.get("gradients scattered", sent.get("gradients summed", 0.0))
    weights = sent.get("weights gathered", 0.0)
    spent = [plan.seconds.get(name, 0.0) for name in ("sampling", "update", "communication")]
    return [
        plan.shape.name,
        trains,
        f"{plan.gpu.name}, {job.sharding}",
        memory if plan.fits else f"**{memory}**",
        gigabytes(weights) if weights else "",
        gigabytes(gradients),
        copy,
        gigabytes(sent["rollouts"]),
        ", ".join(duration(value) if value else "elsewhere" for value in spent),
    ]


def compared() -> str:
    """A line a step that was measured."""
    rows = [
        "| step | peak: planned, measured | sampling | update |",
        "|---|---|---|---|",
    ]
    for step in compared_steps():
        planned = step.plan.memory.tensors / GIB
        change = _percent(planned, step.peak_gib) if step.memory_is_todays else "logits not kept"
        rows.append(
            f"| {step.name} | {planned:.1f}, {step.peak_gib:.1f} GiB ({change}) "
            f"| {_seconds(step.plan.seconds['sampling'], step.sampling)} "
            f"| {_seconds(step.planned_update, step.update)} |"
        )
    return "\n".join(rows)


def large() -> str:
    lines = large_steps()
    if not lines:
        return "Not measured yet: `python benchmarks/memory.py --device cuda` does it."
    rows = [
        "| case | settings | sampling: planned, measured | update: planned, measured | seconds |",
        "|---|---|---|---|---|",
    ]
    for line in lines:
        plan, found = plan_again(line), line["measured"]
        cells = []
        for phase, parts in (("sampling", plan.memory.sampling), ("update", plan.memory.update)):
            planned, measured = sum(parts.values()) / GIB, found[f"{phase}_gib"]
            change = _percent(planned, measured)
            cells.append(f"{planned:.1f}, {measured:.1f} GiB ({change})")
        spent = found["seconds"]["sampling"] + found["seconds"]["update"]
        settings = " ".join(f"`{word}`" for word in line["settings"]) or "all weights, bf16"
        cells.append(_seconds(plan.step, spent))
        rows.append(f"| {line['case']} | {settings} | {' | '.join(cells)} |")
    return "\n".join(rows)


def gpus() -> str:
    rows = [
        "| GPU | GiB | memory TB/s | TFLOP/s | link GB/s | network GB/s |",
        "|---|---|---|---|---|---|",
    ]
    for gpu in GPUS.values():
        rows.append(
            f"| {gpu.name} | {gpu.memory / GIB:.1f} | {gpu.bandwidth / 1e12:.2f} "
            f"| {gpu.flops / 1e12:.0f} | {gpu.link / 1e9:.0f} | {gpu.network / 1e9:.3g} |"
        )
    return "\n".join(rows)


def fewest() -> str:
    """The least power of two of GPUs on which all weights of a shape train, sharded by FSDP2."""
    names = ("a100-40", "h100", "h200", "b200")
    rows = ["| all weights of | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for shape in ("1.5b", "3b", "7b", "8b", "14b", "32b", "70b"):
        cells = [_fewest(shape, gpu) for gpu in names]
        rows.append(f"| {shape} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _fewest(shape: str, gpu: str) -> str:
    for world in (2**n for n in range(10)):
        job = replace(
            ON_EIGHT,
            prompts=8 * world,
            world=world,
            sharding="fsdp2" if world > 1 else "none",
            tokens_per_microbatch=4096,
            max_batch=16,
        )
        if make_plan(shape_of(f"shape:{shape}"), job, GPUS[gpu]).fits:
            return str(world)
    return "none"


def _percent(planned: float, measured: float) -> str:
    return f"{100 * (planned / measured - 1):+.0f} %"


def _seconds(planned: float, measured: float) -> str:
    return f"{planned:.2f}, {measured:.2f} s"


EIGHT_B = ("model=shape:8b", "batch.prompts=16", "rollout.max_prompt_tokens=512",
           "rollout.max_completion_tokens=1024")  # fmt: skip
MADE: dict[str, Callable[[], str]] = {
    "example": lambda: example(*EIGHT_B, gpu="h100"),
    "example of eight": lambda: example(*EIGHT_B, "distributed.kind=fsdp2", gpu="h100", gpus=8),
    "compared": compared,
    "large": large,
    "gpus": gpus,
    "fewest": fewest,
    **{name: lambda lines=lines: paper(lines) for name, lines in PAPER.items()},
}


def page(text: str) -> str:
    """The page with everything that is made made anew."""

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- {name} -->\n{MADE[name]()}\n<!-- end -->"

    return re.sub(r"<!-- (?!end)([^>]*?) -->\n.*?<!-- end -->", fill, text, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
