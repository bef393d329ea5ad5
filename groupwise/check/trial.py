"""One small step of a recipe, made in memory: real prompts, answers, scores, a real update."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from groupwise.config import Config
from groupwise.errors import ModelError
from groupwise.load import Parts
from groupwise.policy.chat_template import render_chat
from groupwise.policy.footprint import footprint
from groupwise.policy.load import Policy
from groupwise.policy.tokenizing import text_of, tokens_of
from groupwise.training.api import start_state
from groupwise.training.clock import Clock
from groupwise.training.metrics import memory_gb
from groupwise.training.state import TrainState
from groupwise.training.step import grpo_step
from groupwise.types import Group, Sampling

PROMPTS = 8
"""Problems that a trial asks, at most."""


@dataclass(frozen=True)
class Trial:
    """What happened. Times are of the trial's own `groups`, by phase."""

    config: Config
    groups: Sequence[Group]
    right: Sequence[bool] | None
    """Whether each answer was right, in order of groups and answers (None: nobody can tell)."""
    formatted: Sequence[bool]
    extracted: Sequence[bool]
    """Whether the task found a final answer in it."""
    seconds: dict[str, float]
    sampler_gap: float | None
    resident_gb: float
    """Weights, gradients, optimizer and reference: what is held all the time."""
    peak_gb: float
    available_gb: float
    on_gpu: bool
    templated: bool | None
    """Whether a chat template renders the prompts (None: prompts are plain text)."""
    turn_end: str | None
    """The token that ends an answer in the template and is not among the model's own ends."""


def small_parts(parts: Parts) -> tuple[Parts, TrainState]:
    """The recipe with at most `PROMPTS` problems a step, before its first one."""
    small = replace(parts, config=small_config(parts.config))
    return small, start_state(small, None)


def make_trial(small: Parts, state: TrainState, config: Config) -> Trial:
    """The first step of `small_parts`, which stands for those of the whole config."""
    _warm_up(small)
    with Clock() as clock:
        step = grpo_step(small, state)
    groups = step.batch.groups
    flat = [(group.problem, c.text) for group in groups for c in group.completions]
    verdicts = small.judge.score([problem for problem, _ in flat], [text for _, text in flat])
    right = verdicts.get("correct")
    held = footprint(small.policy.model, config.optimizer)
    reference = held.weights if state.reference is not None else 0
    return Trial(
        config=config,
        groups=groups,
        right=None if right is None else [bool(verdict) for verdict in right],
        formatted=[bool(verdict) for verdict in verdicts["format"]],
        extracted=[small.task.extract(text) is not None for _, text in flat],
        seconds=clock.phases,
        sampler_gap=step.metrics.get("sampler_gap"),
        resident_gb=(held.weights + reference + (0 if held.offloaded else held.training)) / 1e9,
        peak_gb=memory_gb(),
        available_gb=_available_gb(small.policy.device),
        on_gpu=small.policy.device.type == "cuda",
        templated=_templated(groups[0], small.policy),
        turn_end=foreign_turn_end(small.policy),
    )


def small_config(config: Config) -> Config:
    """The recipe with at most `PROMPTS` problems a step."""
    prompts = min(config.batch.prompts, PROMPTS)
    minibatches = min(config.batch.minibatches, prompts)
    batch = config.batch.model_copy(update={"prompts": prompts, "minibatches": minibatches})
    rollout = config.rollout.model_copy(update={"max_draws": 1.0})
    return config.model_copy(update={"batch": batch, "rollout": rollout})


def _warm_up(parts: Parts) -> None:
    """First calls load kernels and start workers; that is not what a step takes."""
    sampling = Sampling(max_tokens=4)
    problems = parts.problems["train"][:1]
    groups = parts.sample_groups(
        problems, sampling, group_size=2, step="warm-up", in_episodes=False
    )
    problem = groups[0].problem
    parts.scorer.score([problem, problem], [c.text for c in groups[0].completions])


def _templated(group: Group, policy: Policy) -> bool | None:
    if isinstance(group.problem.prompt, str):
        return None
    return bool(policy.tokenizer.chat_template)


def foreign_turn_end(policy: Policy) -> str | None:
    """The special token that the chat template puts behind an answer, unless it ends answers.

    A model that learned from such a template says that token and goes on: nothing stops it.
    """
    tokenizer = policy.tokenizer
    if not tokenizer.chat_template:
        return None
    mark = "the answer"
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
    try:
        text = render_chat(tokenizer, turns)
    except ModelError:
        return None
    after = text.rpartition(mark)[2]
    ids = tokens_of(tokenizer, after)
    special = [token for token in ids if token in tokenizer.all_special_ids]
    if not special or special[0] in policy.eos_ids:
        return None
    return text_of(tokenizer, [special[0]])


def _available_gb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / 1e9
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
