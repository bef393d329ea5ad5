"""`groupwise import FILE`: a TRL GRPOConfig, as YAML or JSON, becomes a recipe of ours.

A field that the file leaves out has TRL's default, which is often not ours; such a default goes
into the recipe too, and is said. So are fields that have no counterpart. The arguments that TRL's
command line adds (model, dataset, LoRA) are read where the file has them.
"""

import json
import math
import pathlib
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from groupwise.config import Config
from groupwise.errors import ConfigError
from groupwise.interop.defaults import DEFAULTS, HINTS, NOTHING_LOST, SCHEDULES
from groupwise.interop.fields import DIRECT, LOSS_TYPES, OPTIMIZERS
from groupwise.objective.surrogates import SURROGATES
from groupwise.recipe import parse, read_yaml

LONGEST_FILE = 1_000_000


@dataclass
class Imported:
    """The recipe as nested settings, and what a reader should know about it."""

    tree: dict[str, Any] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    """Fields of the file without a counterpart."""
    defaults: list[str] = field(default_factory=list)
    """TRL's defaults that were written down because ours are different."""
    notes: list[str] = field(default_factory=list)

    def put(self, path: str, value: Any) -> None:
        *parents, last = path.split(".")
        node = self.tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value

    @property
    def config(self) -> Config:
        return parse(self.tree)


def read_fields(path: pathlib.Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    if path.stat().st_size > LONGEST_FILE:
        raise ConfigError(f"{path} is longer than {LONGEST_FILE} bytes: that is no GRPOConfig")
    if path.suffix != ".json":
        return read_yaml(path)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} must hold one object, not a {type(fields).__name__}")
    return fields


def from_trl(fields: Mapping[str, Any]) -> Imported:
    """{"beta": 0.04, "num_generations": 8, ...} as a recipe."""
    imported = Imported()
    reader = _Reader(fields)
    for ours, theirs in DIRECT.items():
        value = reader.take(theirs)
        if value is not None or theirs in fields:
            imported.put(ours, _plain(theirs, value))
    if imported.tree["rollout"]["top_k"] is None:
        imported.put("rollout.top_k", 0)
    for part in (_batch, _objective, _optimizer, _reference, _rest, _model_and_data):
        part(reader, imported)
    if imported.tree["algorithm"]["entropy_weight"] == 0:
        del imported.tree["algorithm"]["entropy_weight"]
    config = imported.config  # refuses what cannot be, with the reason
    imported.defaults += _differing_defaults(fields, reader.used)
    imported.lost += _lost(fields, reader.used)
    assert config.batch.group_size == imported.tree["batch"]["group_size"]
    return imported


class _Reader:
    """The file over TRL's defaults; remembers what was asked for."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields
        self.used: set[str] = set()
        for name in DEFAULTS.keys() & fields.keys():
            value = fields[name]
            finite = not isinstance(value, float) or math.isfinite(value)
            if not isinstance(value, str | int | float | None) or not finite:
                raise ConfigError(f"{name} is {_brief(value)}: that is no setting of TRL's")

    def take(self, name: str, default: Any = None) -> Any:
        self.used.add(name)
        return self.fields.get(name, DEFAULTS.get(name, default))

    def number(self, name: str) -> Any:
        return self._checked(name, self.take(name), (int, float), "a number")

    def count(self, name: str, otherwise: int | None = None) -> int:
        """A whole number above 0; `otherwise` where the file and TRL leave it open."""
        given = self.take(name)
        value = self._checked(name, otherwise if given is None else given, (int,), "a whole number")
        if value < 1:
            raise ConfigError(f"{name} must be above 0, not {value}")
        return value

    @staticmethod
    def _checked(name: str, value: Any, kinds: tuple[type, ...], what: str) -> Any:
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ConfigError(f"{name} must be {what}, not {value!r}")
        return value


def _plain(name: str, value: Any) -> Any:
    """`scale_rewards` may be a truth value."""
    return {True: "group", False: "none"}.get(value, value) if name == "scale_rewards" else value


def _batch(reader: _Reader, imported: Imported) -> None:
    """Answers and optimizer steps, as TRL counts them, in problems and rollouts."""
    at_once = reader.count("per_device_train_batch_size")
    accumulated = reader.count("gradient_accumulation_steps")
    pieces = reader.count("steps_per_generation", accumulated)
    answers = reader.count("generation_batch_size", at_once * pieces)
    group = reader.count("num_generations")
    if answers % group:
        raise ConfigError(
            f"{answers} answers a rollout are not whole groups of num_generations={group}: "
            "TRL refuses that too"
        )
    minibatches = max(answers // (at_once * accumulated), 1)
    imported.put("batch.prompts", answers // group)
    imported.put("batch.minibatches", minibatches)
    imported.notes.append(
        f"{answers} answers a rollout, for one device: with more devices multiply batch.prompts"
    )
    steps = reader.number("max_steps")
    updates = minibatches * reader.count("num_iterations")
    if steps > 0:
        imported.put("steps", math.ceil(steps / updates))
    else:
        reader.used.discard("max_steps")
        imported.notes.append("max_steps is not set, so steps is ours: set it by hand")
    every = reader.take("save_steps")
    if isinstance(every, int) and every > 0 and reader.take("save_strategy", "steps") != "no":
        imported.put("checkpoint.every", max(every // updates, 1))
    if imported.tree.get("checkpoint", {}).get("keep", 0) is None:
        del imported.tree["checkpoint"]["keep"]


def _objective(reader: _Reader, imported: Imported) -> None:
    loss_type = reader.take("loss_type")
    known = {name: pair for pair, name in LOSS_TYPES.items()}
    if loss_type not in known:
        raise ConfigError(f"loss_type {loss_type!r} is unknown; there are: {', '.join(known)}")
    surrogate, aggregate = known[loss_type]
    imported.put("algorithm.preset", "grpo")
    imported.put("algorithm.surrogate.kind", surrogate)
    imported.put("algorithm.aggregate", aggregate)
    chosen = SURROGATES[surrogate]
    for ours, theirs in chosen.trl_fields.items():
        value = reader.take(theirs, chosen.model_fields[ours].default)
        if value is None and theirs == "epsilon_high":
            value = reader.take("epsilon")
        imported.put(f"algorithm.surrogate.{ours}", value)
    if reader.take("use_bias_correction_kl") and reader.take("beta"):
        imported.put("algorithm.kl_unbiased", True)
    scale = _plain("scale_rewards", reader.take("scale_rewards"))
    if reader.take("multi_objective_aggregation") == "normalize_then_sum":
        imported.put("algorithm.advantage.kind", "gdpo")
    else:
        imported.put("algorithm.advantage", {"kind": "group", "scale": scale})
    if reader.take("min_p"):
        imported.put("rollout.min_p", reader.take("min_p"))
    if reader.take("use_adaptive_entropy"):
        imported.put("algorithm.entropy_target", reader.take("entropy_target", 0.2))
        imported.put("algorithm.entropy_delta", reader.take("entropy_coef_delta", 0.005))
        imported.put("algorithm.entropy_weight_max", reader.take("entropy_coef_max", 1.0))
    _mismatch(reader, imported)


def _mismatch(reader: _Reader, imported: Imported) -> None:
    """TRL corrects for the sampler only with vLLM, and then by default."""
    corrected = reader.take("vllm_importance_sampling_correction", bool(reader.take("use_vllm")))
    if not corrected or not ("vllm_importance_sampling_correction" in reader.fields
                             or reader.take("use_vllm")):  # fmt: skip
        return
    level, _, mode = str(reader.take("vllm_importance_sampling_mode", "sequence_mask")).partition(
        "_"
    )
    imported.put("algorithm.mismatch", level)
    imported.put("algorithm.mismatch_mode", mode)
    imported.put("algorithm.mismatch_min", reader.take("vllm_importance_sampling_clip_min") or 0.0)
    imported.put("algorithm.mismatch_max", reader.take("vllm_importance_sampling_clip_max", 3.0))


def _optimizer(reader: _Reader, imported: Imported) -> None:
    kinds = {theirs: ours for ours, theirs in OPTIMIZERS.items()}
    name = reader.take("optim")
    imported.put("optimizer.kind", kinds.get(name, "adamw"))
    if name not in kinds and name != "adamw_torch_fused":
        imported.notes.append(f"optim={name}: adamw takes its place")
    imported.put("optimizer.betas", [reader.number("adam_beta1"), reader.number("adam_beta2")])
    schedule = reader.take("lr_scheduler_type")
    imported.put("optimizer.schedule", SCHEDULES.get(schedule, "constant"))
    if schedule not in SCHEDULES:
        imported.notes.append(f"lr_scheduler_type={schedule}: constant takes its place")
    warmup = reader.number("warmup_ratio" if reader.take("warmup_ratio") else "warmup_steps")
    batch = imported.tree["batch"]
    updates = batch["minibatches"] * batch["epochs"]
    imported.put("optimizer.warmup", warmup / updates if warmup >= 1 else warmup)
    if imported.tree["optimizer"]["clip_norm"] == 0:
        imported.put("optimizer.clip_norm", 1e9)
        imported.notes.append("max_grad_norm=0 clips nothing: clip_norm is 1e9")


def _reference(reader: _Reader, imported: Imported) -> None:
    if not reader.take("sync_ref_model"):
        return
    alpha = reader.take("ref_model_mixup_alpha", 0.6)
    batch = imported.tree["batch"]
    every = reader.take("ref_model_sync_steps", 512)
    imported.put("reference.kind", "copied" if alpha == 1 else "mixed")
    imported.put("reference.every", max(every // (batch["minibatches"] * batch["epochs"]), 1))
    if alpha != 1:
        imported.put("reference.alpha", alpha)


def _rest(reader: _Reader, imported: Imported) -> None:
    imported.put("gradient_checkpointing", bool(reader.take("gradient_checkpointing")))
    if reader.take("bf16"):
        imported.put("precision", "bf16")
    elif reader.take("fp16"):
        imported.put("precision", "fp16")
    elif "bf16" in reader.fields and "fp16" in reader.fields:
        imported.put("precision", "fp32")
    report = reader.take("report_to")
    if report is not None:
        names = [report] if isinstance(report, str) else list(report)
        for name in ("tensorboard", "trackio", "wandb"):
            imported.put(f"tracking.{name}", name in names or "all" in names)
    if reader.take("max_prompt_length"):
        imported.put("rollout.max_prompt_tokens", reader.take("max_prompt_length"))
    stops = (reader.take("generation_kwargs") or {}).get("stop_strings", [])
    if stops:
        imported.put("rollout.stop", [stops] if isinstance(stops, str) else list(stops))


def _model_and_data(reader: _Reader, imported: Imported) -> None:
    model = reader.take("model_name_or_path")
    if model:
        imported.put("model", model)
    dataset = reader.take("dataset_name")
    if dataset:
        imported.put("task", {"kind": "hub", "path": dataset})
        if reader.take("dataset_config"):
            imported.put("task.name", reader.take("dataset_config"))
        if reader.take("dataset_train_split"):
            imported.put("task.train_split", reader.take("dataset_train_split"))
    rewards = reader.take("reward_funcs")
    if rewards:
        weights = reader.take("reward_weights") or [1.0] * len(rewards)
        names = [_reward_name(str(name)) for name in rewards]
        imported.put(
            "rewards",
            [{"name": n, "weight": w} for n, w in zip(names, weights, strict=True)],
        )
    else:
        imported.notes.append("rewards are the task's own (correct, format): set rewards= to yours")
    if reader.take("use_peft") or reader.take("lora_r"):
        options: dict[str, tuple[str, Any, Callable[[Any], Any]]] = {
            "rank": ("lora_r", 16, int),
            "alpha": ("lora_alpha", 32, float),
            "dropout": ("lora_dropout", 0.05, float),
            "rslora": ("use_rslora", False, bool),
            "dora": ("use_dora", False, bool),
        }
        imported.put("adapter.kind", "lora")
        for ours, (theirs, default, kind) in options.items():
            imported.put(f"adapter.{ours}", kind(reader.take(theirs, default)))
        targets = reader.take("lora_target_modules") or "all-linear"
        imported.put("adapter.targets", targets)
    if reader.take("load_in_4bit") or reader.take("load_in_8bit"):
        imported.put("quantization", "nf4" if reader.take("load_in_4bit") else "int8")


def _reward_name(name: str) -> str:
    """my_package.rewards.short -> my_package.rewards:short"""
    package, dot, function = name.rpartition(".")
    return f"{package}:{function}" if dot else name


def _differing_defaults(fields: Mapping[str, Any], used: set[str]) -> Iterator[str]:
    """Settings that the file leaves to TRL and that would be others if left to us."""
    ours = {theirs: _value(Config(), path) for path, theirs in DIRECT.items()}
    ours |= {
        "lr_scheduler_type": Config().optimizer.schedule,
        "loss_type": "grpo",
        "gradient_checkpointing": False,
    }
    for name, value in ours.items():
        default = DEFAULTS.get(name)
        if name in used and name not in fields and default is not None and default != value:
            yield f"{name} is left to TRL, where it is {default}; our default is {value}"


def _value(config: Config, path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _lost(fields: Mapping[str, Any], used: set[str]) -> Iterator[str]:
    for name, value in fields.items():
        if name in used and name not in HINTS:
            continue
        if name in NOTHING_LOST or value in (None, False, "no"):
            continue
        hint = f" ({HINTS[name]})" if name in HINTS else ""
        yield f"{name}={_brief(value)}{hint}"


def _brief(value: Any) -> str:
    """Bounded, however deep: a few lines of YAML can stand for billions of values."""
    shown = reprlib.Repr()
    shown.maxlevel = 2
    return value[:100] if isinstance(value, str) else shown.repr(value)


def recipe_text(imported: Imported, source: str) -> str:
    """The recipe, with everything that was said about it at its top."""
    lines = [f"Made by `groupwise import` from {source}"]
    lines += [f"no counterpart: {line}" for line in imported.lost]
    lines += [f"default: {line}" for line in imported.defaults] + imported.notes
    head = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    return head + "\n" + yaml.safe_dump(imported.tree, sort_keys=False, allow_unicode=True)
