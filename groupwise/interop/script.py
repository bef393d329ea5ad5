"""What `groupwise export --to` writes: a script from `script.py.jinja`, and the run's dataset.

The dataset holds the run's training problems in the order in which groupwise draws them (its first
pass), with the columns that rewards read. Rewards stay ours, in TRL's signature; so the script
needs groupwise for them, and nothing else of it. What the target cannot express is said at its top.
"""

import json
import pathlib
import pprint
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from transformers import AutoTokenizer

from groupwise.config import AdapterSettings, Config
from groupwise.errors import ConfigError
from groupwise.interop.rewards import PREFILL, PROBLEM_ID
from groupwise.load import judges
from groupwise.policy.pretrained import from_pretrained
from groupwise.policy.prompts import fit_prompts
from groupwise.policy.resolve import NAMES, resolve_model
from groupwise.recipe import read_config
from groupwise.reward_models.reward import PREFIX
from groupwise.rewards.catalog import resolve
from groupwise.rewards.isolation import importable
from groupwise.tasks.base import Task
from groupwise.tasks.catalog import build_task
from groupwise.tracking.run import run_folder
from groupwise.tracking.whole import write_whole, writing
from groupwise.training.sampler import draw
from groupwise.types import Problem

TEMPLATE = pathlib.Path(__file__).with_name("script.py.jinja")
RewardLine = tuple[str, str, float, dict[str, Any]]
"""A reward's name, where its function is, its weight and options."""


@dataclass(frozen=True)
class Target:
    """Target("TRL", "trl", "GRPOConfig", "GRPOTrainer", "trl-output")"""

    name: str
    module: str
    config: str
    trainer: str
    output: str
    on_gpu: bool = True
    """Whether the script asks torch if there is a GPU."""


def run_config(run: str, *, trust_code: bool) -> Config:
    return read_config(run_folder(run) / "config.yaml", trust_code=trust_code)


def write_export(config: Config, out: pathlib.Path, script: str) -> None:
    """The script, and beside it the .jsonl of training problems that fit the prompt limit."""
    task = build_task(config.task)
    tokenizer = from_pretrained(AutoTokenizer, resolve_model(config.model))
    fitting, _ = fit_prompts(task.train, tokenizer, config.rollout.max_prompt_tokens)
    ordered = draw([problem for problem, _ in fitting], 0, len(fitting), config.seed)
    lines = (json.dumps(_row(problem), default=str) + "\n" for problem in ordered)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out.with_suffix(".jsonl"), "".join(lines))
    write_whole(out, script)


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
    lines = []
    for setting in config.rewards:
        source: str | None = setting.name
        if setting.name in own:
            function = own[setting.name]
            source = function if isinstance(function, str) else importable(function)
        elif not setting.name.startswith(PREFIX):
            source = resolve(setting.name)
        if source is None:
            raise ConfigError(
                f"reward {setting.name!r} is a function that no other script can import: put it "
                "at the top level of a file and name it as file.py:function"
            )
        lines.append((setting.name, source, setting.weight, setting.options))
    return lines


def script_text(
    target: Target,
    config: Config,
    head: Iterable[str],
    lost: Iterable[str],
    arguments: Mapping[str, str],
    rewards: Iterable[RewardLine],
    dataset: str,
    **parts: Any,
) -> str:
    """`arguments` are Python; all other text is anyone's, and gets in as a literal or a comment.

    `parts` are what not every target has: `overlong` (its limits) and `quantization`.
    """
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "one_line": lambda line: " ".join(line.split()),
        "repr": repr,
        "pformat": pprint.pformat,
    }
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        target=target,
        head=head,
        lost=lost,
        arguments=arguments,
        rewards=[(name, source, options) for name, source, _, options in rewards],
        dataset=dataset,
        model_name=config.model if config.model in NAMES else None,
        model=resolve_model(config.model),
        options={"timeout": config.reward_timeout, "on_error": config.on_reward_error},
        adapter=None if config.adapter is None else _lora(config.adapter),
        **parts,
    )


def _lora(adapter: AdapterSettings) -> dict[str, Any]:
    targets = adapter.targets if isinstance(adapter.targets, str) else list(adapter.targets)
    return {
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "target_modules": targets,
        "use_rslora": adapter.rslora,
        "use_dora": adapter.dora,
    }
