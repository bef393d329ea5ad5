"""Steps that were measured, beside the plans that today's code makes of them."""

import json
import pathlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from groupwise.check.plan import GPUS, Gpu, Job, Plan, make_plan, shape_of
from groupwise.check.plan.gpus import GIB

RESULTS = pathlib.Path(__file__).parent / "results"
LARGE = RESULTS / "memory-h200.json"
"""Written by memory.py."""


@dataclass(frozen=True)
class Step:
    """A plan and what was measured: the peak in GiB, sampling and update in seconds."""

    name: str
    plan: Plan
    peak_gib: float
    sampling: float
    update: float
    dated: bool = True
    """Whether the record says when it was made. Older ones are of code that waited for the host."""
    memory_is_todays: bool = True
    """Whether the code that was measured kept logits as today's does, where there is memory."""

    @property
    def planned_update(self) -> float:
        return self.plan.seconds["update"] + self.plan.seconds.get("optimizer", 0.0)


def recorded(folder: pathlib.Path = RESULTS) -> list[pathlib.Path]:
    """The JSON files of a folder that git tracks, so that a stray measurement changes nothing.

    All of them where there is no repository, as in an unpacked archive.
    """
    command = ["git", "ls-files", "-z", "--", "*.json"]
    listed = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if listed.returncode != 0:
        return sorted(folder.glob("*.json"))
    return sorted(folder / name for name in listed.stdout.split("\0") if name)


def compared_steps() -> Iterator[Step]:
    """groupwise's own steps in the records of compare.py.

    Not those that filled the GPU: how long an allocator takes to give memory back and ask for it
    again is in no plan.
    """
    for path in recorded():
        record = json.loads(path.read_text())
        if "peak" not in record:
            continue
        for line in record["results"]:
            full = line.get("notes", {}).get("reserved_bytes", 0) > 0.97 * GPUS["h200"].memory
            if line["kind"].startswith("groupwise") and "seconds" in line and not full:
                yield _compared(line, record)


def _compared(line: dict[str, Any], record: dict[str, Any]) -> Step:
    setting, on_cpu = line["setting"], line["setting"]["device"] == "cpu"
    natural, compiled = setting["lengths"] == "natural", line["kind"].endswith("+compile")
    answers = setting["prompts"] * setting["group"]
    job = Job(
        prompts=setting["prompts"],
        group_size=setting["group"],
        prompt_tokens=setting["prompt_tokens"],
        answer_tokens=setting["completion_tokens"],
        mean_answer=line["tokens"] / answers if natural else None,
        precision="fp32" if on_cpu else "bf16",
        compiled=compiled,
        rank=setting.get("adapter", 0),
    )
    model = "shape:135m" if setting["model"] == "smollm2" else setting["model"]
    # The machine that it was measured on, not the one that this runs on.
    cores = record["machine"]["cores"]
    cpu = Gpu("cpu", 24 * GIB, 33e9, 97e9 * cores, 1e10, 1e9, is_cpu=True)
    lengths = f"({setting['prompt_tokens']} + {setting['completion_tokens']})"
    notes = f"{' LoRA' * (job.rank > 0)}{' natural' * natural}{' compiled' * compiled}"
    notes += " on a CPU" * on_cpu
    return Step(
        name=f"{setting['model']} {job.prompts} x {job.group_size} x {lengths}{notes}",
        plan=make_plan(shape_of(model), job, cpu if on_cpu else GPUS["h200"]),
        peak_gib=line["peak_bytes"] / GIB,
        sampling=line["seconds"]["generation"],
        update=line["seconds"]["update"],
        dated="date" in record,
        memory_is_todays=on_cpu or record.get("keeps_logits", False),
    )


def large_steps() -> list[dict[str, Any]]:
    """What memory.py measured; cases that failed are left out."""
    lines = json.loads(LARGE.read_text())["cases"] if LARGE.exists() else []
    return [line for line in lines if "failure" not in line["measured"]]


def plan_again(line: dict[str, Any]) -> Plan:
    """The plan that today's code makes of a case that was recorded."""
    job = {**line["job"], "targets": line["job"]["targets"] and tuple(line["job"]["targets"])}
    return make_plan(shape_of(line["model"]), Job(**job), GPUS["h200"])
