"""`groupwise export --to trl`: a script that trains the same with TRL 1.16, and its dataset.

The dataset holds the run's training problems in the order in which groupwise draws them (its first
pass), with the columns that rewards read. Rewards stay ours, in TRL's signature; so the script
needs groupwise for them, and nothing else of it. What TRL cannot express is said at its top.
"""

import json
import os
import pathlib
import pprint
from collections.abc import Iterable, Sequence
from typing import Any

from transformers import AutoTokenizer

from groupwise.config import Config
from groupwise.errors import ConfigError, RunFolderError
from groupwise.evaluate import judges
from groupwise.interop.fields import trl_fields
from groupwise.interop.rewards import PREFILL, PROBLEM_ID
from groupwise.policy.pretrained import from_pretrained
from groupwise.policy.prompts import fit_prompts
from groupwise.policy.resolve import NAMES, resolve_model
from groupwise.recipe import read_config
from groupwise.reward_models.reward import PREFIX
from groupwise.rewards.catalog import resolve
from groupwise.rewards.isolation import importable
from groupwise.tasks.base import Task
from groupwise.tasks.catalog import build_task
from groupwise.training.sampler import draw
from groupwise.types import Problem

TRL = "1.16.0"
RewardLine = tuple[str, str, float, dict[str, Any]]
"""A reward's name, where its function is, its weight and options."""


def export_trl(run: str, out: pathlib.Path, *, trust_code: bool = False) -> tuple[str, ...]:
    """Write `out` and its .jsonl; returns what TRL cannot express."""
    config = run_config(run, trust_code=trust_code)
    dataset = write_dataset(config, out.with_suffix(".jsonl"))
    fields = trl_fields(config)
    write_text(out, trl_script(config, fields.values, fields.lost, dataset.name))
    return fields.lost


def run_config(run: str, *, trust_code: bool) -> Config:
    path = pathlib.Path(run) / "config.yaml"
    if not path.is_file():
        raise RunFolderError(f"{run} is not a run folder: it has no config.yaml")
    return read_config(path, trust_code=trust_code)


def write_text(path: pathlib.Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(path.name + ".new")
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, path)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {path}: {error.strerror}; give another --out"
        ) from error


def write_dataset(config: Config, path: pathlib.Path) -> pathlib.Path:
    """One training problem a line; those with a longer prompt than allowed are left out."""
    task = build_task(config.task)
    tokenizer = from_pretrained(AutoTokenizer, resolve_model(config.model))
    fitting, _ = fit_prompts(task.train, tokenizer, config.rollout.max_prompt_tokens)
    ordered = draw([problem for problem, _ in fitting], 0, len(fitting), config.seed)
    lines = (json.dumps(_row(problem), default=str) + "\n" for problem in ordered)
    write_text(path, "".join(lines))
    return path


def _row(problem: Problem) -> dict[str, Any]:
    prompt: Any = problem.prompt
    if isinstance(prompt, str):
        prompt = prompt + problem.prefill
    elif problem.prefill:  # TRL goes on with a last turn of the assistant's
        prompt = [*prompt, {"role": "assistant", "content": problem.prefill}]
    own = {PREFILL: problem.prefill} if problem.prefill else {}
    columns = {key: value for key, value in problem.columns.items() if key != "prompt"}
    return {"prompt": prompt, PROBLEM_ID: problem.id, **own, **columns}


def reward_lines(config: Config, task: Task) -> list[RewardLine]:
    own = {reward.name: reward.function for reward in judges(task)}
    found = []
    for setting in config.rewards:
        place: str | None = setting.name
        if setting.name in own:
            function = own[setting.name]
            place = function if isinstance(function, str) else importable(function)
        elif not setting.name.startswith(PREFIX):
            place = resolve(setting.name)
        if place is None:
            raise ConfigError(
                f"reward {setting.name!r} is a function that no other script can import: put it "
                "at the top level of a file and name it as file.py:function"
            )
        found.append((setting.name, place, setting.weight, setting.options))
    return found


def trl_script(config: Config, values: dict[str, Any], lost: Iterable[str], dataset: str) -> str:
    rewards = reward_lines(config, build_task(config.task))
    overlong = config.rollout.overlong_buffer
    weights = [weight for _, _, weight, _ in rewards] + ([1.0] if overlong else [])
    arguments = {**values, "reward_weights": weights}
    device = [] if "use_cpu" in values else ["        use_cpu=not on_gpu,"]
    half = "False" if "use_cpu" in values else "on_gpu"
    device += [] if "bf16" in values else [f"        bf16={half},"]
    return "\n".join(
        [
            *comments(
                f"{config.model} on {config.task.kind} with TRL {TRL}, as groupwise trained it.",
                f"pip install trl=={TRL} groupwise (groupwise for its reward functions)",
                *lost_lines(lost, "TRL"),
            ),
            "",
            "import pathlib",
            "",
            "import torch",
            "from datasets import load_dataset",
            *_lora_import(config),
            *_quantization_import(config),
            "from trl import GRPOConfig, GRPOTrainer",
            *(["from trl.rewards import get_soft_overlong_punishment"] if overlong else []),
            "",
            *own_lines(config, rewards),
            "def arguments() -> GRPOConfig:",
            "    on_gpu = torch.cuda.is_available()",
            "    return GRPOConfig(",
            '        output_dir=str(HERE / "trl-output"),',
            *(f"        {name}={value!r}," for name, value in arguments.items()),
            *device,
            f"        model_init_kwargs={{'dtype': {_dtype(config)}}},",
            "    )",
            "",
            "",
            *_trainer_lines(config, dataset),
            'if __name__ == "__main__":',
            "    training = trainer()",
            "    training.train()",
            '    training.save_model(str(HERE / "trl-output" / "model"))',
            "",
        ]
    )


def _trainer_lines(config: Config, dataset: str) -> list[str]:
    return [
        "def trainer() -> GRPOTrainer:",
        f"    options = {{'timeout': {config.reward_timeout!r}, "
        f"'on_error': {config.on_reward_error!r}}}",
        "    rewards = [trl_reward(*reward, **options) for reward in REWARDS]",
        *_overlong(config),
        f"    data = load_dataset('json', data_files=str(HERE / {dataset!r}), split='train')",
        "    return GRPOTrainer(",
        "        model=MODEL,",
        "        reward_funcs=rewards,",
        "        args=arguments(),",
        "        train_dataset=data,",
        *_quantization(config),
        *lora_lines(config),
        "    )",
        "",
        "",
    ]


def comments(*lines: str) -> list[str]:
    """Text from a config may hold anything: as a comment on one line it can do nothing."""
    return [f"# {' '.join(line.split())}" for line in lines]


def own_lines(config: Config, rewards: Sequence[RewardLine]) -> list[str]:
    """What a script has of ours: its folder, the model (names of ours are looked up), rewards."""
    found: list[str] = []
    model = repr(resolve_model(config.model)) if config.model not in NAMES else None
    if model is None:
        found = ["from groupwise.policy.resolve import resolve_model"]
        model = f"resolve_model({config.model!r})"
    return [
        "from groupwise.interop.rewards import trl_reward",
        *found,
        "",
        "HERE = pathlib.Path(__file__).parent",
        f"MODEL = {model}",
        "# name, where its function is, options; their weights are reward_weights below",
        f"REWARDS = {pprint.pformat([(n, p, o) for n, p, _, o in rewards], width=96)}",
        "",
        "",
    ]


def lost_lines(lost: Iterable[str], where: str) -> list[str]:
    """What the target cannot express, for the top of a script."""
    found = [f"- {line}" for line in lost]
    evaluation = f"- eval.*: {where} does not evaluate here; use `groupwise eval` on what it saves"
    head = f"Settings of the run that {where} cannot express, and what stands in their place:"
    return [head, *found, evaluation]


def _dtype(config: Config) -> str:
    """TRL's optimizer has no fp32 masters of its own: weights in fp32, computed in half."""
    if config.quantization is not None:
        return "'bfloat16' if torch.cuda.is_available() else 'float32'"
    return "'float32'"


def _overlong(config: Config) -> list[str]:
    rollout = config.rollout
    if not rollout.overlong_buffer:
        return []
    limits = f"{rollout.max_completion_tokens}, {rollout.overlong_buffer}"
    return [f"    rewards.append(get_soft_overlong_punishment({limits}))"]


def _lora_import(config: Config) -> list[str]:
    return ["from peft import LoraConfig"] if config.adapter else []


def _quantization_import(config: Config) -> list[str]:
    return ["from transformers import BitsAndBytesConfig"] if config.quantization else []


def _quantization(config: Config) -> list[str]:
    if config.quantization is None:
        return []
    if config.quantization == "int8":
        return ["        quantization_config=BitsAndBytesConfig(load_in_8bit=True),"]
    return [
        "        quantization_config=BitsAndBytesConfig(",
        "            load_in_4bit=True,",
        "            bnb_4bit_quant_type='nf4',",
        "            bnb_4bit_use_double_quant=True,",
        "            bnb_4bit_compute_dtype=torch.bfloat16,",
        "        ),",
    ]


def lora_lines(config: Config) -> list[str]:
    adapter = config.adapter
    if adapter is None:
        return []
    targets = adapter.targets if isinstance(adapter.targets, str) else list(adapter.targets)
    return [
        "        peft_config=LoraConfig(",
        "            task_type='CAUSAL_LM',",
        f"            r={adapter.rank},",
        f"            lora_alpha={adapter.alpha:g},",
        f"            lora_dropout={adapter.dropout!r},",
        f"            target_modules={targets!r},",
        f"            use_rslora={adapter.rslora},",
        f"            use_dora={adapter.dora},",
        "        ),",
    ]
