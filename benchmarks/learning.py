"""Real learning, recorded: groupwise and TRL train the same model on the same problems.

    python benchmarks/learning.py gsm8k --model FOLDER --data FOLDER --side groupwise --steps 80
    python benchmarks/learning.py gsm8k --model FOLDER --data FOLDER --side trl --steps 24
    python benchmarks/learning.py sums --seeds 3          # SmolLM2 on three-term sums, both sides

gsm8k is `groupwise train best_small --preset quarter_hour`; sums is sums.yaml. TRL's side is the
script that `groupwise export --to trl` writes, with a larger micro-batch. Every step becomes a
line of OUT/learning-*.jsonl; every few steps the model answers the test problems, greedily, by the
same code on both sides. That and loading do not count in `seconds`. `--out` is a folder that git
ignores; to record a run for docs/learning.md, give `--out benchmarks/results`.
"""

import argparse
import importlib.util
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from groupwise.config import Config
from groupwise.evaluate import evaluate
from groupwise.interop.fields import trl_fields
from groupwise.interop.script import write_export
from groupwise.interop.trl import trl_script
from groupwise.load import Parts, load_parts
from groupwise.recipe import load_recipe
from groupwise.tracking.base import Trackers
from groupwise.tracking.run import RunFolder
from groupwise.training.api import start_state
from groupwise.training.loop import run_loop
from groupwise.training.signals import StopRequest

HERE = pathlib.Path(__file__).resolve().parent
SIDES = ("groupwise", "trl")
Test = Callable[[], dict[str, float]]


class Log:
    """One line a step, written as it comes; `test` is called at every `every`-th step."""

    def __init__(self, path: pathlib.Path, facts: dict[str, Any], samples: int, every: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a")
        self.facts, self.samples, self.every = facts, samples, every
        self.seconds = 0.0

    def write(self, step: int, seconds: float, numbers: Mapping[str, float], test: Test) -> None:
        self.seconds += seconds
        line = {**self.facts, "step": step, "samples": step * self.samples}
        line |= {"seconds": round(self.seconds, 3)}
        line |= {name: round(number, 5) for name, number in numbers.items()}
        if step % self.every == 0:
            began = time.perf_counter()
            found = test()
            kept = ("accuracy", "format", "tokens", "truncated", "problems")
            line["test"] = {name: round(found[name], 5) for name in kept}
            line["test"]["seconds"] = round(time.perf_counter() - began, 2)
        print(json.dumps(line), flush=True)
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


def train_groupwise(config: Config, log: Log) -> None:
    """The package's own loop. Its checkpoints and final model are left out: they are large."""
    with (
        tempfile.TemporaryDirectory() as folder,
        RunFolder(pathlib.Path(folder) / "run", config) as run,
        load_parts(config) as parts,
    ):
        log.write(0, 0.0, {}, lambda: evaluate(parts, "test").metrics)
        trackers = Trackers({"log": lambda: Tracker(log, parts)})
        run_loop(parts, start_state(parts, None), run, trackers, StopRequest())


class Tracker:
    def __init__(self, log: Log, parts: Parts) -> None:
        self.to, self.parts = log, parts

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        names = {
            "reward": "reward",
            "correct": "rewards/correct",
            "format": "rewards/format",
            "tokens": "tokens",
            "generation": "seconds/generate",
            "memory_gb": "memory_gb",
        }
        numbers = {ours: metrics[name] for ours, name in names.items() if name in metrics}
        self.to.write(step, metrics["seconds"], numbers, self._test)

    def _test(self) -> dict[str, float]:
        return evaluate(self.parts, "test").metrics

    def close(self) -> None:
        pass


def train_trl(config: Config, log: Log, batch: int) -> None:
    """The exported script, at TRL's fast settings: no checkpointing, micro-batches of `batch`."""
    answers = config.batch.prompts * config.batch.group_size
    batch = max(n for n in range(1, min(batch, answers) + 1) if answers % n == 0)
    fields = trl_fields(config)
    values = fields.values | {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": answers // batch,
        "steps_per_generation": answers // batch,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    with tempfile.TemporaryDirectory() as folder, load_parts(config) as parts:
        script = pathlib.Path(folder) / "trl_side.py"
        write_export(config, script, trl_script(config, values, fields.lost, "trl_side.jsonl"))
        trainer = _module(script).trainer()
        trainer.add_callback(_callback(log, parts, trainer))
        trainer.train()


def _callback(log: Log, parts: Parts, trainer: Any) -> Any:
    from transformers import TrainerCallback

    def test() -> dict[str, float]:
        trained = trainer.accelerator.unwrap_model(trainer.model).state_dict()
        parts.policy.model.load_state_dict(trained)
        return evaluate(parts, "test").metrics

    class Steps(TrainerCallback):
        began = took = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            log.write(0, 0.0, {}, test)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            _synchronize()
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            _synchronize()
            self.took = time.perf_counter() - self.began

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "reward" not in (logs or {}):
                return
            names = {
                "reward": "reward",
                "correct": "rewards/correct/mean",
                "format": "rewards/format/mean",
                "tokens": "completions/mean_length",
            }
            numbers = {ours: float(logs[name]) for ours, name in names.items() if name in logs}
            if torch.cuda.is_available():
                numbers["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
            log.write(state.global_step, self.took, numbers, test)

    return Steps()


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _module(path: pathlib.Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def config_of(options: argparse.Namespace, seed: int) -> Config:
    own = [f"seed={seed}", *options.settings]
    own += [f"steps={options.steps}"] if options.steps else []
    own += [f"model={options.model}"] if options.model else []
    if options.what == "sums":
        own.append(f"task.path={HERE / 'sums.py'}:task")
        return load_recipe(str(HERE / "sums.yaml"), own)
    own += [f"task.path={options.data}"] if options.data else []
    return load_recipe("best_small", own, preset="quarter_hour")


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("gsm8k", "sums"))
    parser.add_argument("settings", nargs="*", help="key.sub=value, as for groupwise train")
    parser.add_argument("--side", choices=SIDES, help="one of the two alone")
    parser.add_argument("--model", help="a folder, or what model= takes")
    parser.add_argument("--data", help="the folder with GSM8K's train.jsonl and test.jsonl")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--test-every", type=int, default=10, help="steps")
    parser.add_argument("--trl-batch", type=int, default=32, help="its micro-batch, in answers")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "measured")
    options = parser.parse_intermixed_args(argv)
    for seed in range(options.seeds):
        for side in [options.side] if options.side else SIDES:
            config = config_of(options, seed)
            samples = config.batch.prompts * config.batch.group_size
            device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
            facts = {"side": side, "seed": seed, "device": device}
            path = options.out / f"learning-{options.what}-{side}.jsonl"
            log = Log(path, facts, samples, options.test_every)
            if side == "groupwise":
                train_groupwise(config, log)
            else:
                train_trl(config, log, options.trl_batch)


if __name__ == "__main__":
    main(sys.argv[1:])
