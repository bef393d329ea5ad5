"""groupwise and TRL side by side: the same model, prompts, lengths and settings, in one run.

    python benchmarks/compare.py                                   # CPU, SmolLM2-135M
    python benchmarks/compare.py --device cuda --model shape:0.5b --prompts 32 --group 8 \
        --prompt-tokens 200 --completion-tokens 256 --lengths both

Each kind is measured in a child process of its own (on a CPU one for each setting); a child that
fails or takes too long costs only its own results. The JSON file is rewritten after every
measurement. docs/benchmarks.md says what is measured and how to read it.
"""

import argparse
import json
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from groupwise.check.peak import Peak
from sidebyside.children import measured
from sidebyside.settings import (
    KINDS,
    Failure,
    Lengths,
    Measurement,
    Setting,
    Size,
    measurement_from,
)
from sidebyside.table import HEAD, find, row, step_ratio, tables

HERE = pathlib.Path(__file__).parent
RECORDS = HERE / "results"
"""What the documentation and the tests rest on: tracked, and written only with --record."""
MEASURED = HERE / "measured"
"""What was measured here: ignored by git, read by nothing."""
MODELS = ("smollm2", "shape:135m", "shape:0.5b", "shape:1.5b", "shape:3b", "shape:8b", "shape:tiny")

Job = tuple[str, list[Setting]]
"""A kind, and the settings that one child process measures it at."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8, help="answers to each prompt")
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--completion-tokens", type=int, default=64)
    parser.add_argument("--lengths", choices=("fixed", "natural", "both"), default="fixed")
    parser.add_argument("--beta", type=float, default=0.04, help="of the setting with a reference")
    parser.add_argument("--adapter", type=int, default=0, help="train a LoRA adapter of this rank")
    parser.add_argument("--steps", type=int, default=2, help="that count, after one that does not")
    parser.add_argument("--sweep", action="store_true", help="how cost grows, one number at a time")
    parser.add_argument("--quick", action="store_true", help="groupwise and trl, no reference")
    parser.add_argument("--only", help=f"kinds, in order: {','.join(KINDS)}")
    parser.add_argument("--trl-batch", type=int, default=0, help="its micro-batch (0: largest)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for a child process")
    parser.add_argument("--json", type=pathlib.Path, help="default: in benchmarks/measured/")
    parser.add_argument("--record", action="store_true", help="default: in benchmarks/results/")
    options = parser.parse_args(argv)
    if options.trl_batch and options.prompts * options.group % options.trl_batch:
        parser.error(f"--trl-batch must divide the {options.prompts * options.group} answers")
    for kind in (options.only or "").split(","):
        if kind and kind not in KINDS:
            parser.error(f"--only {kind}: there are {', '.join(KINDS)}")
    return options


def plan(options: argparse.Namespace) -> list[Job]:
    """What is measured: groupwise before its peers, so that each row can show a ratio at once."""
    base = Setting(
        options.device,
        options.model,
        options.prompts,
        options.group,
        options.prompt_tokens,
        options.completion_tokens,
        steps=options.steps,
        trl_batch=options.trl_batch,
        adapter=options.adapter,
    )
    kinds = ["groupwise", "trl"]
    if not (options.quick or options.sweep):
        kinds = ["groupwise", "generate", "trl"]
        if options.device == "cuda":
            kinds = ["groupwise", "generate", "vllm", "trl", "groupwise+compile"]
            kinds += ["trl+liger", "trl+vllm"]
    if options.only:
        kinds = list(dict.fromkeys(kind for kind in options.only.split(",") if kind))
    if options.sweep:
        settings = sweep(base)
    else:
        chosen: list[Lengths] = ["fixed", "natural"]
        if options.lengths != "both":
            chosen = [options.lengths]
        settings = [replace(base, lengths=lengths) for lengths in chosen]
        if not options.quick and options.beta:
            settings.append(replace(settings[0], beta=options.beta))
    return jobs(kinds, settings, options.device)


def sweep(base: Setting) -> list[Setting]:
    """The base, and around it each of four numbers halved, doubled and (lengths) fourfold."""
    base = replace(base, steps=1)
    changes = {
        "group": (0.5, 2),
        "prompts": (0.5, 2),
        "prompt_tokens": (0.5, 2, 4),
        "completion_tokens": (0.5, 2, 4),
    }
    points = [base]
    for name, factors in changes.items():
        for factor in factors:
            value = max(2 if name == "group" else 1, int(getattr(base, name) * factor))
            points.append(replace(base, **{name: value}))
    return list(dict.fromkeys(points))


def jobs(kinds: Sequence[str], settings: Sequence[Setting], device: str) -> list[Job]:
    """CUDA's peak memory can be reset, so a kind starts one process; on a CPU each setting one.

    There the kinds take turns, so that a machine that gets slower does so for all of them.
    """

    def settings_of(kind: str) -> list[Setting]:
        whole = kind in ("groupwise", "trl")  # the others are only about the step without reference
        return [setting for setting in settings if whole or not setting.beta]

    if device == "cuda":
        return [(kind, settings_of(kind)) for kind in kinds]
    return [(kind, [one]) for one in settings for kind in kinds if one in settings_of(kind)]


def target(options: argparse.Namespace) -> pathlib.Path:
    """The file that results go to: results/compare-cuda-shape-0_5b.json"""
    name = options.model.replace(":", "-").replace(".", "_")
    kind = "sweep" if options.sweep else "compare"
    folder = RECORDS if options.record else MEASURED
    return options.json or folder / f"{kind}-{options.device}-{name}.json"


class Report:
    """Results so far: on the screen, and in a file that is whole after every measurement."""

    def __init__(self, path: pathlib.Path, command: str) -> None:
        self.path = path
        self.head: dict[str, Any] = {"command": command}
        self.results: list[Measurement | Failure] = []
        path.parent.mkdir(parents=True, exist_ok=True)

    def machine(self, data: dict[str, Any]) -> None:
        self.head |= data
        self._write()
        if "peak" in data:
            flops, speed = data["peak"]["flops"] / 1e12, data["peak"]["bytes"] / 1e9
            machine = data["machine"]
            name = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
            say(f"{name}: {flops:.3g} TFLOP/s, {speed:.4g} GB/s at best")

    def add(self, result: Measurement | Failure) -> None:
        self.results.append(result)
        self._write()
        say(row(result, find(self.results, result.setting, "groupwise")))

    def summary(self) -> str:
        size = Size(**self.head["size"]) if "size" in self.head else None
        peak = Peak(**self.head["peak"]) if "peak" in self.head else None
        return tables(self.results, size, peak)

    def _write(self) -> None:
        data = {**self.head, "results": [asdict(result) for result in self.results]}
        aside = self.path.with_suffix(".new")
        aside.write_text(json.dumps(data, indent=1) + "\n")
        os.replace(aside, self.path)


def say(text: str) -> None:
    print(text, flush=True)


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    report = Report(target(options), shlex.join(["python", "benchmarks/compare.py", *argv]))
    work = plan(options)
    machine = next(measured("machine", [work[0][1][0]], options.timeout))
    report.machine(machine if "why" not in machine else {"machine_failed": machine["why"]})
    last = None
    for kind, settings in work:
        for data in measured(kind, settings, options.timeout):
            result = measurement_from(data)
            if result.setting != last:
                last = result.setting
                say(f"\n{last.describe()}\n{HEAD}")
            report.add(result)
    say(f"\n{report.summary()}\n\nwritten to {report.path}")
    ratio = step_ratio(report.results)
    say("step ratio: " + ("not measured" if ratio is None else f"{ratio:.2f}"))
    return 0 if ratio is not None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
