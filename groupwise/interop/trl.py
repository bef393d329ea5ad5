"""`groupwise export --to trl`: a script that trains the same with TRL 1.16, and its dataset."""

import pathlib
from collections.abc import Iterable
from typing import Any

from groupwise.config import Config
from groupwise.interop.fields import trl_fields
from groupwise.interop.script import Target, reward_lines, run_config, script_text, write_export
from groupwise.tasks.catalog import build_task

TRL = "1.16.0"
TARGET = Target("TRL", "trl", "GRPOConfig", "GRPOTrainer", "trl-output")


def export_trl(run: str, out: pathlib.Path, *, trust_code: bool = False) -> tuple[str, ...]:
    """Write `out` and its .jsonl; returns what TRL cannot express."""
    config = run_config(run, trust_code=trust_code)
    fields = trl_fields(config)
    script = trl_script(config, fields.values, fields.lost, out.with_suffix(".jsonl").name)
    write_export(config, out, script)
    return fields.lost


def trl_script(config: Config, values: dict[str, Any], lost: Iterable[str], dataset: str) -> str:
    rewards = reward_lines(config, build_task(config.task))
    rollout = config.rollout
    overlong = rollout.overlong_buffer and (rollout.max_completion_tokens, rollout.overlong_buffer)
    weights = [weight for _, _, weight, _ in rewards] + ([1.0] if overlong else [])
    arguments = {name: repr(value) for name, value in {**values, "reward_weights": weights}.items()}
    if "use_cpu" not in values:
        arguments["use_cpu"] = "not on_gpu"
    if "bf16" not in values:
        arguments["bf16"] = "False" if "use_cpu" in values else "on_gpu"
    # TRL's optimizer has no fp32 masters of its own: weights in fp32, computed in half.
    dtype = "'bfloat16' if on_gpu else 'float32'" if config.quantization else "'float32'"
    arguments["model_init_kwargs"] = f"{{'dtype': {dtype}}}"
    head = (
        f"{config.model} on {config.task.kind} with TRL {TRL}, as groupwise trained it.",
        f"pip install trl=={TRL} groupwise (groupwise for its reward functions)",
    )
    return script_text(
        TARGET, config, head, lost, arguments, rewards, dataset,
        overlong=overlong, quantization=config.quantization,
    )  # fmt: skip
