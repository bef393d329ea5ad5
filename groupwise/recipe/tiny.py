"""`--tiny`: any recipe as a run of seconds on a CPU, to see its whole path work before it matters.

What a recipe is about stays: algorithm, rewards, adapter, optimizer, schedule, sampling, reference,
epochs. What makes it large is swapped: the model for the embedded one, the numbers of steps,
problems and tokens, the device, its precision (many CPUs compute half precision in software, a
hundred times slower), a reference server for the reference itself, vLLM and workers for an engine
of our own in the same process. Data from the hub gives way to samples/, a few sums in the
form of the same dataset; data that is given by a path is used. The embedded model earns nothing by
forms that it does not know, so a penalty on length (`rollout.overlong_buffer`) makes answers differ
and updates happen: a tiny run shows that all parts work together, and nothing about learning.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from groupwise.config import Config
from groupwise.config.flat import leaves

SAMPLES = pathlib.Path(__file__).parent.parent / "tasks" / "samples"
EMBEDDED = ("tiny", "tiny_tools")
LAYERS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
"""What an adapter may be on in the embedded models."""
STEPS, PROBLEMS, ANSWER_TOKENS, PROMPT_TOKENS = 2, 4, 32, 448


def tiny(config: Config) -> Config:
    """The same recipe, small. A pure function: nothing is loaded."""
    tree: dict[str, Any] = config.model_dump(mode="json")
    batch, rollout = config.batch, config.rollout
    prompts = min(batch.prompts, 2)
    tree |= {
        "model": config.model if config.model in EMBEDDED else "tiny",
        "device": "cpu",
        "precision": "fp32",
        "steps": STEPS,
        "compile": "none",
        "task": tiny_task(tree["task"]),
        # The embedded model is narrower than the blocks of nf4, which a CPU then misreads.
        "quantization": "int8" if config.quantization else None,
    }
    tree["batch"] |= {
        "prompts": prompts,
        "group_size": min(batch.group_size, 4),
        "minibatches": min(batch.minibatches, prompts),
    }
    tree["rollout"] |= {
        "max_prompt_tokens": PROMPT_TOKENS,
        "max_completion_tokens": min(rollout.max_completion_tokens, ANSWER_TOKENS),
        "overlong_buffer": min(rollout.max_completion_tokens, ANSWER_TOKENS),
    }
    if config.adapter is not None and not LAYERS.issuperset(config.adapter.targets):
        tree["adapter"]["targets"] = "all-linear"
    if config.engine.kind == "vllm":
        tree["engine"] = {"kind": "auto", "max_batch": config.engine.max_batch}
    tree["place"] = {"kind": "here"}
    tree["timing"] = {"kind": "in_turn"}
    if config.reference.kind in ("server", "process"):
        tree["reference"] |= {"kind": "frozen", "urls": ()}
    tree["reference"]["every"] = 1
    tree["eval"] |= {
        "every": min(config.eval.every, STEPS),
        "problems": PROBLEMS,
        "k": min(config.eval.k, 2),
        "max_completion_tokens": None,
    }
    tree["checkpoint"]["every"] = 1
    tree["tracking"] |= {"trackio": False, "wandb": False}
    return Config.model_validate(tree)


def tiny_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """Fewer problems, and samples of ours where the data would come from the hub."""
    small = dict(task)
    kind = small["kind"]
    if kind == "hub":
        kept = ("train_size", "test_size", "prefill", "seed")
        small = {"kind": "jsonl", **{name: task[name] for name in kept}}
        small |= {"path": str(SAMPLES / "prompts.jsonl"), "answer": task["answer"] and "answer"}
    elif kind in ("gsm8k", "aqua_rat", "mathqa", "math") and small["path"] is None:
        # The samples ask in the words that the embedded model knows; a system prompt silences it.
        small |= {"path": str(SAMPLES / kind), "system": ""}
    elif kind == "countdown" and small["path"] is None:
        # It cannot search: equations that it only has to end.
        small |= {"path": str(SAMPLES / kind), "prefill": "<think></think><answer>4*(3+"}
    if kind != "countdown" and small.get("prefill") and not task.get("path"):
        small["prefill"] = ""  # a sentence that it does not know puts it off
    if "train_size" in small:
        small |= {"train_size": 16, "test_size": PROBLEMS}
    if "validation_size" in small:
        small["validation_size"] = PROBLEMS
    return small


def swapped(before: Config, after: Config) -> list[str]:
    """What differs, in words: ["model tiny (was Qwen/Qwen2.5-3B-Instruct)", "steps 2 (was 50)"]"""
    old, new = _named(before), _named(after)
    return [
        f"{name} {_shown(new.get(name))} (was {_shown(old.get(name))})"
        for name in [*new, *(name for name in old if name not in new)]
        if old.get(name) != new.get(name)
    ]


def _shown(value: Any) -> str:
    return "none" if value is None else "empty" if value == "" else str(value)


def _named(config: Config) -> dict[str, Any]:
    """Every setting by its flat name; rewards by theirs."""
    names = ", ".join(reward.name for reward in config.rewards)
    return leaves(config.model_dump(mode="json")) | {"rewards": names}
