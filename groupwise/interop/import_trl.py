"""`groupwise import FILE`: a TRL GRPOConfig, as YAML or JSON, becomes a recipe of ours.

A field that the file leaves out has TRL's default, which is often not ours; such a default goes
into the recipe too, and is said. So are fields that have no counterpart. The arguments that TRL's
command line adds (model, dataset, LoRA) are read where the file has them. `groupwise.trl` reads its
GRPOConfig here too, and refuses what only could be said.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from groupwise.config import Config
from groupwise.config.flat import leaves
from groupwise.errors import ConfigError, type_name
from groupwise.interop.defaults import HINTS, SCHEDULES
from groupwise.interop.fields import DIRECT, OPTIMIZERS
from groupwise.interop.grpo_fields import ALL
from groupwise.interop.known_data import task_of_dataset
from groupwise.interop.trl_surrogates import FIELDS, LOSS_TYPES
from groupwise.interop.unmatched import brief, fields_of, unmatched
from groupwise.objective.surrogates import SURROGATES
from groupwise.recipe import parse, read_yaml

LONGEST_FILE = 1_000_000
WHERE_SET = {
    "min_p": "rollout.min_p",
    "max_prompt_length": "rollout.max_prompt_tokens",
    "model_name_or_path": "model",
}
"""TRL's field -> our setting, which has it only where the file says something."""
LORA: dict[str, tuple[str, Any, Callable[[Any], Any]]] = {
    "rank": ("lora_r", 16, int),
    "alpha": ("lora_alpha", 32, float),
    "dropout": ("lora_dropout", 0.05, float),
    "rslora": ("use_rslora", False, bool),
    "dora": ("use_dora", False, bool),
}
"""Our setting of an adapter -> TRL's field, its default there, and the type."""


@dataclass
class Imported:
    """TRL's fields being read, the recipe as nested settings, and what a reader should know of it.

    `take` gives a field of the file, or else TRL's default, and remembers what was asked for.
    """

    fields: Mapping[str, Any]
    used: set[str] = field(default_factory=set)
    tree: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    """Fields without a counterpart, and a line about each."""
    defaults: list[str] = field(default_factory=list)
    """TRL's defaults that were written down because ours are different."""
    notes: list[str] = field(default_factory=list)

    def take(self, name: str, default: Any = None) -> Any:
        """Text, a finite number, true, false or null: no setting of TRL's is anything else."""
        value = self.take_any(name, default)
        finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(value, str | int | float | None) or not finite:
            raise ConfigError(f"{name} is {brief(value)}: that is no setting of TRL's")
        return value

    def take_any(self, name: str, default: Any = None) -> Any:
        """Of the few fields that are lists or mappings."""
        self.used.add(name)
        return self.fields.get(name, ALL.get(name, default))

    def number(self, name: str) -> Any:
        value = self.take(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"{name} must be a number, not {value!r}")
        return value

    def count(self, name: str, otherwise: int | None = None) -> int:
        """A whole number above 0; `otherwise` where the file and TRL leave it open."""
        given = self.take(name)
        value = otherwise if given is None else given
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name} must be a whole number above 0, not {value!r}")
        return value

    def put(self, path: str, value: Any) -> None:
        *parents, last = path.split(".")
        node = self.tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value

    @property
    def updates(self) -> int:
        """Optimizer steps a rollout."""
        return self.tree["batch"]["minibatches"] * self.tree["batch"]["epochs"]

    @property
    def config(self) -> Config:
        return parse(self.tree)


def read_fields(path: pathlib.Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    if path.stat().st_size > LONGEST_FILE:
        raise ConfigError(f"{path} is longer than {LONGEST_FILE} bytes: that is no GRPOConfig")
    if path.suffix in (".py", ".ipynb"):
        raise ConfigError(
            f"{path} is a script, not settings. Nothing has to be imported: write `from "
            "groupwise.trl import GRPOConfig, GRPOTrainer` in place of `from trl import ...` and "
            "run it as it is (docs/trl.md). For a recipe, write its arguments to a file first: "
            "json.dump(args.to_dict(), open('grpo.json', 'w'))"
        )
    if path.suffix != ".json":
        return read_yaml(path)
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} must hold one object, not {type_name(fields)}")
    return fields


def from_trl(fields: Mapping[str, Any] | Any) -> Imported:
    """{"beta": 0.04, "num_generations": 8, ...}, or a GRPOConfig, as a recipe."""
    if dataclasses.is_dataclass(fields):
        fields = fields_of(fields)
    imported = Imported(fields)
    for ours, theirs in DIRECT.items():
        value = imported.take(theirs)
        if value is not None or theirs in fields:
            imported.put(ours, value)
    if imported.tree["rollout"]["top_k"] is None:
        imported.put("rollout.top_k", 0)
    for part in (_batch, _objective, _optimizer, _reference, _engine, _rest, _model_and_data):
        part(imported)
    if imported.tree["algorithm"]["entropy_weight"] == 0:
        del imported.tree["algorithm"]["entropy_weight"]
    config = imported.config  # refuses what cannot be, with the reason
    imported.defaults += _differing_defaults(fields, imported.used)
    imported.lost |= dict(unmatched(fields, imported.used))
    assert config.batch.group_size == imported.tree["batch"]["group_size"]
    return imported


def _batch(imported: Imported) -> None:
    """Answers and optimizer steps, as TRL counts them, in problems and rollouts."""
    at_once = imported.count("per_device_train_batch_size")
    accumulated = imported.count("gradient_accumulation_steps")
    pieces = imported.count("steps_per_generation", accumulated)
    answers = imported.count("generation_batch_size", at_once * pieces)
    group = imported.count("num_generations")
    answers = _whole_updates(imported, answers, at_once, accumulated)
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
    steps = imported.number("max_steps")
    imported.count("num_iterations")  # refused unless it is a whole number above 0
    if steps > 0:
        imported.put("steps", math.ceil(steps / imported.updates))
    else:
        imported.used.discard("max_steps")
        imported.notes.append("max_steps is not set, so steps is ours: set it by hand")
    every = imported.take("save_steps")
    if isinstance(every, int) and every > 0 and imported.take("save_strategy", "steps") != "no":
        imported.put("checkpoint.every", max(every // imported.updates, 1))
    if imported.tree.get("checkpoint", {}).get("keep", 0) is None:
        del imported.tree["checkpoint"]["keep"]
    _evaluation(imported)


def _whole_updates(imported: Imported, answers: int, at_once: int, accumulated: int) -> int:
    """The answers a rollout, where one ends with an optimizer step: several of TRL's may be
    sampled by the same weights before the step, and are one rollout here."""
    pieces, odd = divmod(answers, at_once)
    alike = imported.take("num_iterations") == 1 and imported.take("scale_rewards") != "batch"
    if odd or (pieces % accumulated and (accumulated % pieces or not alike)):
        raise ConfigError(
            f"a rollout of {answers} answers in pieces of {at_once} and optimizer steps of "
            f"{accumulated} pieces do not fit together: let steps_per_generation be a multiple of "
            "gradient_accumulation_steps"
        )
    return max(answers, at_once * accumulated)


def _evaluation(imported: Imported) -> None:
    strategy, every = imported.take("eval_strategy"), imported.take("eval_steps")
    if strategy == "steps":
        every = imported.take("logging_steps") if every is None else every
        if isinstance(every, int | float) and 0 < every < 1:
            every *= imported.tree.get("steps", Config().steps) * imported.updates
        if not isinstance(every, int | float) or isinstance(every, bool) or every <= 0:
            raise ConfigError(f"eval_steps must be a number above 0, not {brief(every)}")
        imported.put("eval.every", max(int(every) // imported.updates, 1))
    elif strategy not in (None, "no"):
        imported.lost["eval_strategy"] = f"eval_strategy={brief(strategy)} (set eval.every=)"


def _objective(imported: Imported) -> None:
    loss_type = imported.take("loss_type")
    known = {name: pair for pair, name in LOSS_TYPES.items()}
    if loss_type not in known:
        raise ConfigError(f"loss_type {loss_type!r} is unknown; there are: {', '.join(known)}")
    surrogate, aggregate = known[loss_type]
    imported.put("algorithm.preset", "grpo")
    imported.put("algorithm.surrogate.kind", surrogate)
    imported.put("algorithm.aggregate", aggregate)
    for ours, theirs in FIELDS[surrogate].items():
        value = imported.take(theirs, SURROGATES[surrogate].model_fields[ours].default)
        if value is None and theirs == "epsilon_high":
            value = imported.take("epsilon")
        imported.put(f"algorithm.surrogate.{ours}", value)
    if imported.take("use_bias_correction_kl") and imported.take("beta"):
        imported.put("algorithm.kl_unbiased", True)
    scale = imported.take("scale_rewards")
    scale = {True: "group", False: "none"}.get(scale, scale)
    if imported.take("multi_objective_aggregation") == "normalize_then_sum":
        imported.put("algorithm.advantage.kind", "gdpo")
    else:
        imported.put("algorithm.advantage", {"kind": "group", "scale": scale})
    if imported.take("use_adaptive_entropy"):
        imported.put("algorithm.entropy_target", imported.take("entropy_target", 0.2))
        imported.put("algorithm.entropy_delta", imported.take("entropy_coef_delta", 0.005))
        imported.put("algorithm.entropy_weight_max", imported.take("entropy_coef_max", 1.0))
    _mismatch(imported)


def _mismatch(imported: Imported) -> None:
    """TRL corrects for the sampler only with vLLM, and then by default."""
    asked = "vllm_importance_sampling_correction" in imported.fields
    if not imported.take("vllm_importance_sampling_correction") or not (
        imported.take("use_vllm") or asked
    ):
        if imported.take("use_vllm"):
            imported.put("algorithm.mismatch", "none")
        return
    both = str(imported.take("vllm_importance_sampling_mode", "sequence_mask"))
    level, _, mode = both.partition("_")
    imported.put("algorithm.mismatch", level)
    imported.put("algorithm.mismatch_mode", mode)
    imported.put(
        "algorithm.mismatch_min", imported.take("vllm_importance_sampling_clip_min") or 0.0
    )
    highest = imported.take("vllm_importance_sampling_clip_max")
    imported.put("algorithm.mismatch_max", 1e9 if highest is None else highest)


def _optimizer(imported: Imported) -> None:
    kinds = {theirs: ours for ours, theirs in OPTIMIZERS.items()}
    name = imported.take("optim")
    imported.put("optimizer.kind", kinds.get(name, "adamw"))
    if name not in kinds and name != "adamw_torch_fused":
        imported.lost["optim"] = f"optim={name} (adamw takes its place)"
    imported.put("optimizer.betas", [imported.number("adam_beta1"), imported.number("adam_beta2")])
    schedule = imported.take("lr_scheduler_type")
    imported.put("optimizer.schedule", SCHEDULES.get(schedule, "constant"))
    if schedule not in SCHEDULES:
        imported.lost["lr_scheduler_type"] = (
            f"lr_scheduler_type={schedule} (constant takes its place)"
        )
    warmup = imported.number("warmup_ratio" if imported.take("warmup_ratio") else "warmup_steps")
    imported.put("optimizer.warmup", warmup / imported.updates if warmup >= 1 else warmup)
    if imported.tree["optimizer"]["clip_norm"] == 0:
        imported.put("optimizer.clip_norm", 1e9)
        imported.notes.append("max_grad_norm=0 clips nothing: clip_norm is 1e9")


def _reference(imported: Imported) -> None:
    if not imported.take("sync_ref_model"):
        return
    alpha = imported.take("ref_model_mixup_alpha", 0.6)
    every = imported.take("ref_model_sync_steps", 512)
    imported.put("reference.kind", "copied" if alpha == 1 else "mixed")
    imported.put("reference.every", max(every // imported.updates, 1))
    if alpha != 1:
        imported.put("reference.alpha", alpha)


def _engine(imported: Imported) -> None:
    """vLLM in the trainer's process, or a server: ours, since weights travel in our own way."""
    if not imported.take("use_vllm"):
        return
    imported.put("engine.kind", "vllm")
    if imported.take("vllm_mode") != "server":
        imported.put("engine.memory_share", imported.take("vllm_gpu_memory_utilization"))
        imported.put("engine.sleep", bool(imported.take("vllm_enable_sleep_mode")))
        return
    host = imported.take("vllm_server_host")
    host = "127.0.0.1" if host == "0.0.0.0" else host
    port = imported.take("vllm_server_port")
    url = imported.take("vllm_server_base_url") or f"http://{host}:{port}"
    imported.put("place", {"kind": "servers", "urls": [url]})
    imported.notes.append(f"start `groupwise serve vllm MODEL` at {url}: it is not TRL's server")


def _rest(imported: Imported) -> None:
    imported.put("gradient_checkpointing", bool(imported.take("gradient_checkpointing")))
    if imported.take("bf16"):
        imported.put("precision", "bf16")
    elif imported.take("fp16"):
        imported.put("precision", "fp16")
    elif "bf16" in imported.fields and "fp16" in imported.fields:
        imported.put("precision", "fp32")
    imported.used.add("report_to")
    report = imported.fields.get("report_to")
    if report is not None:
        names = report if isinstance(report, list) else [report]
        for name in ("tensorboard", "trackio", "wandb"):
            imported.put(f"tracking.{name}", name in names or "all" in names)
    for theirs, ours in WHERE_SET.items():
        if imported.take(theirs):
            imported.put(ours, imported.take(theirs))
    _generation(imported)


def _generation(imported: Imported) -> None:
    """`generation_kwargs` override the fields of the same name."""
    given = imported.take_any("generation_kwargs") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"generation_kwargs must be a mapping, not {brief(given)}")
    rest = dict(given)
    if rest.pop("do_sample", True) is not True:
        raise ConfigError("generation_kwargs: do_sample=False gives a group of equal answers")
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        if rest.get(name) is not None:
            imported.put(f"rollout.{name}", rest.pop(name))
    if "max_new_tokens" in rest:
        imported.put("rollout.max_completion_tokens", rest.pop("max_new_tokens"))
    stops = rest.pop("stop_strings", None) or []
    if stops:
        imported.put("rollout.stop", [stops] if isinstance(stops, str) else list(stops))
    if rest:
        imported.lost["generation_kwargs"] = (
            f"generation_kwargs={brief(rest)} ({HINTS['generation_kwargs']})"
        )


def _model_and_data(imported: Imported) -> None:
    dataset, rewards = imported.take("dataset_name"), imported.take_any("reward_funcs")
    if dataset:
        named = imported.take("dataset_config"), imported.take("dataset_train_split")
        task, line = task_of_dataset(dataset, *named, judged=bool(rewards))
        imported.put("task", task)
        imported.notes.append(line)
    if rewards:
        weights = imported.take_any("reward_weights") or [1.0] * len(rewards)
        names = [_reward_name(str(name)) for name in rewards]
        imported.put(
            "rewards",
            [{"name": n, "weight": w} for n, w in zip(names, weights, strict=True)],
        )
    else:
        imported.notes.append("rewards are the task's own (correct, format): set rewards= to yours")
    if imported.take("use_peft") or imported.take("lora_r"):
        imported.put("adapter.kind", "lora")
        for ours, (theirs, default, kind) in LORA.items():
            imported.put(f"adapter.{ours}", kind(imported.take(theirs, default)))
        imported.put("adapter.targets", imported.take_any("lora_target_modules") or "all-linear")
    if imported.take("load_in_4bit") or imported.take("load_in_8bit"):
        imported.put("quantization", "nf4" if imported.take("load_in_4bit") else "int8")


def _reward_name(name: str) -> str:
    """my_package.rewards.short -> my_package.rewards:short"""
    return ":".join(name.rsplit(".", 1))


def _differing_defaults(fields: Mapping[str, Any], used: set[str]) -> Iterator[str]:
    """Settings that the file leaves to TRL and that would be others if left to us."""
    settings, named = leaves(Config().model_dump()), {"optimizer.schedule": "lr_scheduler_type"}
    ours = {theirs: settings[path] for path, theirs in (DIRECT | named).items()}
    ours |= {"loss_type": "grpo", "gradient_checkpointing": False}
    for name, value in ours.items():
        default = ALL.get(name)
        if name in used and name not in fields and default is not None and default != value:
            yield f"{name} is left to TRL, where it is {default}; our default is {value}"


def recipe_text(imported: Imported, source: str) -> str:
    """The recipe, with everything that was said about it at its top."""
    lines = [f"Made by `groupwise import` from {source}"]
    lines += [f"no counterpart: {line}" for line in imported.lost.values()]
    lines += [f"default: {line}" for line in imported.defaults] + imported.notes
    head = "".join(f"# {' '.join(line.split())}\n" for line in lines) + "\n"
    return head + yaml.safe_dump(imported.tree, sort_keys=False, allow_unicode=True)
