"""One case of benchmarks/memory.py, in a process of its own: build the model, train, report.

Weights are random and made layer by layer on the device; with nf4 each layer is quantised before
the next is made, so that the model is never there in 16 bits. From there on it is groupwise's own
loop, with an engine that notes the peak of each phase.
"""

import gc
import importlib
import json
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from groupwise.check.plan import Shape, shape_of
from groupwise.config import Config
from groupwise.load import Parts, make_engine
from groupwise.policy.activations import checkpoint_activations
from groupwise.policy.adapters import add_adapter
from groupwise.policy.footprint import footprint
from groupwise.policy.load import Policy, make_policy, pick_dtype
from groupwise.policy.prompts import fit_prompts
from groupwise.rewards.base import Reward
from groupwise.rewards.scorer import Scorer
from groupwise.rollout.engine import Engine
from groupwise.tasks.base import Task
from groupwise.tracking.base import Trackers
from groupwise.tracking.run import RunFolder
from groupwise.training.loop import run_loop
from groupwise.training.optim import Optimizer
from groupwise.training.signals import StopRequest
from groupwise.training.state import TrainState
from groupwise.types import Completion, Problem, Request, Sampling
from sidebyside.models import NEVER, _numbered_tokenizer
from sidebyside.record import forget_peak, held_bytes, peak_bytes, synchronize
from sidebyside.reward import letters

GIB = 2**30


def model_config(shape: Shape) -> Any:
    kind = Qwen2Config if shape.family == "qwen2" else LlamaConfig
    return kind(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=8192,
        tie_word_embeddings=shape.tied,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
    )


@torch.no_grad()
def build(config: Config) -> Any:
    """A model of one layer, whose list of layers is then filled up."""
    device, dtype = torch.device(config.device), pick_dtype(config.precision, _device(config))
    full = model_config(shape_of(config.model))
    count, full.num_hidden_layers = full.num_hidden_layers, 1
    torch.manual_seed(0)
    with device:
        model: Any = AutoModelForCausalLM.from_config(full, dtype=dtype)
    model.config.num_hidden_layers = count
    layers = model.model.layers
    kind = type(layers[0])
    for number in range(count):
        with device:
            layer = layers[0] if number == 0 else kind(model.config, number).to(dtype)
        for parameter in layer.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02)
        if config.quantization is not None:
            quantize(layer, dtype, device)
        if number:
            layers.append(layer)
    model.is_loaded_in_4bit = config.quantization == "nf4"
    return model


def quantize(layer: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """A layer's matrices in nf4, doubly quantised: as `load_policy` has them."""
    layers: Any = importlib.import_module("bitsandbytes.nn")
    for parent in list(layer.modules()):
        for name, linear in list(parent.named_children()):
            if type(linear) is not nn.Linear:
                continue
            small = layers.Linear4bit(
                linear.in_features,
                linear.out_features,
                bias=linear.bias is not None,
                compute_dtype=dtype,
                compress_statistics=True,
                quant_type="nf4",
                device="meta",
            )
            packed = layers.Params4bit(
                linear.weight.data,
                requires_grad=False,
                compress_statistics=True,
                quant_type="nf4",
                module=small,
            )
            small.weight = packed.to(device)
            small.bias = linear.bias
            setattr(parent, name, small)


def make(config: Config) -> Policy:
    model = build(config)
    shape = shape_of(config.model)
    tokenizer = _numbered_tokenizer(shape.vocab)
    for settings in (model.config, model.generation_config):
        settings.eos_token_id = tokenizer.eos_token_id
        settings.pad_token_id = tokenizer.pad_token_id
    head = model.get_output_embeddings()
    bias = torch.zeros(shape.vocab)
    bias[[tokenizer.eos_token_id, tokenizer.pad_token_id]] = NEVER
    head.bias = nn.Parameter(bias.to(head.weight), requires_grad=False)
    adapter = None
    if config.adapter is not None:
        adapter = add_adapter(model, config.adapter, model.dtype, config.seed)
    if config.gradient_checkpointing:
        checkpoint_activations(model, offload=config.gradient_checkpointing == "offload")
    return make_policy(model, tokenizer, config.batch.layout, adapter)


class Watched:
    """An engine that notes what sampling held at its fullest, and how long it took."""

    def __init__(self, inner: Engine, device: str) -> None:
        self.inner, self.device = inner, device
        self.running = 0
        self.peaks: list[int] = []
        self.lengths: set[int] = set()

    async def sample(self, request: Request, sampling: Sampling) -> tuple[Completion, ...]:
        if not self.running:
            forget_peak(self.device)
        self.running += 1
        answers = await self.inner.sample(request, sampling)
        self.running -= 1
        if not self.running:
            synchronize(self.device)
            self.peaks.append(peak_bytes(self.device))
            forget_peak(self.device)
        self.lengths |= {len(answer.tokens) for answer in answers}
        return answers

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.inner.load_weights(version, weights)

    def close(self) -> None:
        self.inner.close()


class StepLog:
    """A tracker: the update's peak, and the loop's own seconds."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.lines: list[dict[str, float]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.lines.append(
            {
                "update_bytes": peak_bytes(self.device),
                "held_bytes": held_bytes(self.device),
                "sampling": metrics["seconds/generate"],
                "update": metrics["seconds/update"],
                "loss": metrics["loss"],
                "grad_norm": metrics["grad_norm"],
            }
        )

    def close(self) -> None:
        pass


def measure(config: Config) -> dict[str, Any]:
    device = config.device
    began = time.perf_counter()
    policy = make(config)
    gc.collect()
    cost = footprint(policy.model, config.optimizer)
    rng = random.Random(0)
    limit, usable = config.rollout.max_prompt_tokens, policy.vocab - 2
    texts = [
        " ".join(f"t{rng.randrange(usable)}" for _ in range(limit))
        for _ in range(config.batch.prompts)
    ]
    problems = [Problem(str(i), text) for i, text in enumerate(texts)]
    prompted, _ = fit_prompts(problems, policy.tokenizer, limit)
    task = Task("lengths", problems, None, validation=[], test=[])
    scorer = Scorer([Reward("letters", letters)], config.reward_timeout, config.on_reward_error)
    engine = Watched(make_engine(policy, config), device)
    state = TrainState(policy, Optimizer(policy.model, config.optimizer, config.steps), None)
    log = StepLog(device)
    built = time.perf_counter() - began
    with (
        tempfile.TemporaryDirectory() as folder,
        RunFolder(pathlib.Path(folder) / "run", config) as run,
        Parts(config, policy, task, engine, scorer, scorer, {"train": prompted}) as parts,
    ):
        run_loop(parts, state, run, Trackers({"log": lambda: log}), StopRequest())
    later = log.lines[1:] or log.lines
    assert engine.lengths == {config.rollout.max_completion_tokens}
    return {
        "sampling_gib": max(engine.peaks) / GIB,
        "update_gib": max(line["update_bytes"] for line in log.lines) / GIB,
        "held_gib": log.lines[-1]["held_bytes"] / GIB,
        "reserved_gib": torch.cuda.max_memory_reserved() / GIB if device == "cuda" else None,
        "seconds": {name: min(line[name] for line in later) for name in ("sampling", "update")},
        "steps": log.lines,
        "engine": type(engine.inner).__name__,
        "layout": policy.layout,
        "parameters": cost.parameters,
        "trainable": cost.trainable,
        "weights_gib": cost.weights / GIB,
        "build_seconds": built,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
    }


def _device(config: Config) -> torch.device:
    return torch.device(config.device)


def main(wanted: pathlib.Path, result: pathlib.Path) -> None:
    case = json.loads(wanted.read_text())
    config = Config.model_validate(case["config"])
    if case["limit_gib"] is not None and config.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(case["limit_gib"] * GIB / total)
    result.write_text(json.dumps(measure(config)))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
