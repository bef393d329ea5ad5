"""Planned against measured: the memory and the seconds of one training step of large shapes.

    python benchmarks/memory.py --device cuda --out benchmarks/results/memory-h200.json
    python benchmarks/memory.py --device cpu --cases tiny,tiny-lora

Each case is a real step of groupwise (sample, score, update) on a model with random weights, in a
process of its own. Peaks are what torch's tensors held, sampling and update apart. The plan is that
of `groupwise check`. A case that must fit a smaller GPU runs under that limit.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from groupwise.check.plan import Plan, find_gpu, job_of, make_plan, shape_of  # noqa: E402
from groupwise.check.plan.gpus import GIB  # noqa: E402
from groupwise.config import Config  # noqa: E402
from groupwise.recipe import parse  # noqa: E402

STEPS = 3
"""The first compiles and makes the moments; the best of the others counts for time."""


@dataclass(frozen=True)
class Case:
    """A shape, and settings as the command line takes them."""

    model: str
    settings: tuple[str, ...] = ()
    limit_gib: float | None = None
    """Memory that the process may have."""


LORA = ("adapter=lora", "adapter.rank=16")
NF4 = (*LORA, "quantization=nf4", "gradient_checkpointing=true")
SHORT = ("batch.prompts=2", "rollout.max_prompt_tokens=20", "rollout.max_completion_tokens=8")
CASES: dict[str, Case] = {
    "tiny": Case("shape:tiny", SHORT),
    "tiny-lora": Case("shape:tiny", (*SHORT, *LORA, "gradient_checkpointing=true")),
    "tiny-nf4": Case("shape:tiny", (*SHORT, *NF4)),
    "3b": Case("shape:3b"),
    "3b-lora": Case("shape:3b", LORA),
    "3b-nf4": Case("shape:3b", (*NF4, "batch.tokens_per_microbatch=8192")),
    "8b-lora": Case("shape:8b", (*LORA, "batch.tokens_per_microbatch=8192")),
    "8b-nf4": Case("shape:8b", (*NF4, "batch.tokens_per_microbatch=8192"), limit_gib=15.4),
    "7b-nf4": Case("shape:7b", (*NF4, "batch.tokens_per_microbatch=8192"), limit_gib=15.4),
    "8b-full-8bit": Case(
        "shape:8b",
        (
            "optimizer.kind=adamw_8bit",
            "gradient_checkpointing=true",
            "batch.tokens_per_microbatch=8192",
        ),
    ),
}
"""16 GiB less CUDA's own 0.6 are 15.4. All weights of the 8b shape in bf16 with 32-bit moments need
more than one H200 has: its full fine-tune is measured with moments in 8 bits."""

BASE: dict[str, Any] = {
    "steps": STEPS,
    "batch": {"prompts": 8, "group_size": 8},
    "rollout": {"max_prompt_tokens": 200, "max_completion_tokens": 256},
    "optimizer": {"lr": 1e-6},
    "checkpoint": {"every": 0},
    "tracking": {"tensorboard": False, "rollouts": 0},
    "compile": "sampling",
}


def config_of(case: Case, device: str) -> Config:
    return parse({**BASE, "model": case.model, "device": device}, case.settings)


def plan_of(case: Case, config: Config, gpu: str) -> Plan:
    """Answers have one length, the limit."""
    found = find_gpu(gpu)
    job = replace(job_of(config, on_gpu=not found.is_cpu), mean_answer=None)
    return make_plan(shape_of(case.model), job, found)


def measure(case: Case, device: str, timeout: float) -> dict[str, Any]:
    """The child's own account, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, result = pathlib.Path(folder) / "case.json", pathlib.Path(folder) / "result.json"
        config = config_of(case, device).model_dump(mode="json")
        wanted.write_text(json.dumps({"config": config, "limit_gib": case.limit_gib}))
        paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        child = subprocess.Popen(
            [sys.executable, str(HERE / "memory_step.py"), str(wanted), str(result)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
            return {"failure": f"stopped after {timeout:.0f} s", "output": output[-2000:]}
        if not result.exists():
            return {"failure": f"exit status {child.returncode}", "output": output[-2000:]}
        return json.loads(result.read_text())


def compared(name: str, case: Case, plan: Plan, found: Mapping[str, Any]) -> dict[str, Any]:
    """What a result file holds of one case."""
    return {
        "case": name,
        "model": case.model,
        "settings": list(case.settings),
        "limit_gib": case.limit_gib,
        "job": asdict(plan.job),
        "planned": {
            "sampling_gib": sum(plan.memory.sampling.values()) / GIB,
            "update_gib": sum(plan.memory.update.values()) / GIB,
            "peak_gib": plan.memory.tensors / GIB,
            "with_context_gib": plan.peak_gib,
            "parts_gib": {
                phase: {part: size / GIB for part, size in parts.items()}
                for phase, parts in (
                    ("sampling", plan.memory.sampling),
                    ("update", plan.memory.update),
                )
            },
            "seconds": dict(plan.seconds),
        },
        "measured": dict(found),
    }


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        f"{'case':<14}{'sampling GiB':>22}{'update GiB':>22}{'sampling s':>18}{'update s':>18}",
        f"{'':<14}" + f"{'planned measured':>22}" * 2 + f"{'planned measured':>18}" * 2,
    ]
    for line in lines:
        plan, found = line["planned"], line["measured"]
        if "failure" in found:
            rows.append(f"{line['case']:<14}  {found['failure']}")
            continue
        update = plan["seconds"]["update"] + plan["seconds"].get("optimizer", 0.0)
        memory = [(plan[f"{p}_gib"], found[f"{p}_gib"]) for p in ("sampling", "update")]
        times = [
            (plan["seconds"]["sampling"], found["seconds"]["sampling"]),
            (update, found["seconds"]["update"]),
        ]
        cells = [f"{a:.2f} {b:.2f} ({100 * (a / b - 1):+.0f} %)".rjust(22) for a, b in memory]
        cells += [f"{a:.2f} {b:.2f} (x{a / b:.2f})".rjust(18) for a, b in times]
        rows.append(f"{line['case']:<14}" + "".join(cells))
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--gpu", help="whose figures to plan with (default: h200, or this cpu)")
    large = ",".join(name for name in CASES if not name.startswith("tiny"))
    parser.add_argument("--cases", default=large, help=f"of {', '.join(CASES)}")
    parser.add_argument("--timeout", type=float, default=150.0, help="seconds for each case")
    parser.add_argument("--out", type=pathlib.Path, help="write all of it here, as JSON")
    chosen = parser.parse_args(arguments)
    gpu = chosen.gpu or ("cpu" if chosen.device == "cpu" else "h200")
    lines: list[dict[str, Any]] = []
    for name in chosen.cases.split(","):
        case = CASES[name]
        config = config_of(case, chosen.device)
        plan = plan_of(case, config, gpu)
        print(f"{name}: planned {plan.memory.tensors / GIB:.2f} GiB, {plan.step:.2f} s", flush=True)
        lines.append(compared(name, case, plan, measure(case, chosen.device, chosen.timeout)))
        found = lines[-1]["measured"]
        print(found.get("failure") or json.dumps(found), flush=True)
        if "failure" in found:
            print(found["output"], flush=True)
        if chosen.out is not None:  # after each case: what is measured is not lost
            record = {"device": chosen.device, "gpu": gpu, "cases": lines}
            chosen.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(lines))
    return lines


if __name__ == "__main__":
    main()
