"""The step to explain: a recipe's first, or one of a run's, with the log-probs of its updates.

A run is exactly resumable, so the weights before step K are those of the last checkpoint before it,
moved by the updates in between; their answers are stored, so nothing is sampled again. Where that
is not possible (no stored answers, too far, or `stored` is asked for), the stored log-probs stand
in: those of the sampler, or of the policy before the step's first update.
"""

import math
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from groupwise.batch import Batch
from groupwise.config import Config
from groupwise.config.code import check_code
from groupwise.errors import RunFolderError
from groupwise.explain.numbers import StepNumbers, token_numbers
from groupwise.policy.tokenizing import text_of
from groupwise.recipe import parse, read_yaml
from groupwise.tracking.run import read_metrics, stored_groups, stored_steps
from groupwise.training.recorder import Recorder, Update
from groupwise.training.update import rollout_batch
from groupwise.types import Group

FARTHEST = 100
"""Updates between a checkpoint and the step to explain that are still made again."""

Decode = Callable[[int], str]
"""The text of one token."""


@dataclass(frozen=True)
class ExplainedStep:
    """A step's updates in order, and where its numbers come from, in words."""

    name: str
    number: int
    config: Config
    updates: list[Update]
    decode: Decode
    source: str
    exact: bool
    logged: Mapping[str, Any]
    """The step's line in metrics.jsonl (for a recipe: what it would be)."""

    @cached_property
    def _numbers(self) -> dict[int, StepNumbers]:
        objective = self.config.algorithm
        return {id(update): token_numbers(update, objective) for update in self.updates}

    def numbers(self, update: Update) -> StepNumbers:
        """Every number of one of the step's updates."""
        return self._numbers[id(update)]

    @property
    def taken(self) -> list[Update]:
        """The optimizer steps that were taken: a part without any spread takes none."""
        return [update for update in self.updates if update.computed]

    @property
    def loss(self) -> float:
        """The mean over the step's updates, as it is logged."""
        losses = [self.numbers(update).loss for update in self.taken]
        return sum(losses) / len(losses) if losses else 0.0

    @property
    def last_pass(self) -> list[Update]:
        """The last update of every group: the updates of the last epoch."""
        return self.updates[-self.config.batch.minibatches :]


def is_run(path: str | pathlib.Path) -> bool:
    return (pathlib.Path(path) / "config.yaml").is_file()


def recipe_step(name: str, config: Config) -> ExplainedStep:
    """The first step of a recipe, made for real with its model."""
    from groupwise.load import load_parts
    from groupwise.training.api import start_state
    from groupwise.training.step import grpo_step

    with load_parts(config) as parts:
        state = start_state(parts, None)
        recorder = Recorder()
        step = grpo_step(parts, state, recorder=recorder)
        return ExplainedStep(
            name,
            1,
            config,
            recorder.updates,
            decoder(parts.policy.tokenizer),
            "the first step of the recipe, made just now with its model",
            True,
            step.metrics,
        )


def run_step(
    folder: pathlib.Path, number: int | None, *, stored: bool = False, trust_code: bool = False
) -> ExplainedStep:
    """Step `number` of a run (None: the last that needs no other step to be made again)."""
    config = parse(read_yaml(folder / "config.yaml"))
    check_code(config.algorithm, folder / "config.yaml", (), trust_code=trust_code)
    config = config.model_copy(update={"algorithm": config.algorithm.loaded()})
    number = _check_stored(folder, number, stored)
    logged = next((row for row in read_metrics(folder) if row["step"] == number), {})
    groups = stored_groups(folder, number)
    start = None if stored else _steps_since(folder, number)
    if start is None:
        return _from_stored(folder, config, number, groups, logged)
    from groupwise.load import load_config_policy
    from groupwise.training.api import make_state
    from groupwise.training.update import learn

    checkpoint, distance = start
    weights = None if checkpoint is None else str(checkpoint / "model")
    policy = load_config_policy(config, weights)
    state = make_state(config, policy, checkpoint, with_reference=False)
    while state.step < number - 1:
        learn(rollout_batch(stored_groups(folder, state.step + 1), config), state, config)
    recorder = Recorder()
    learn(rollout_batch(groups, config), state, config, recorder)
    weights_of = "the initial model" if checkpoint is None else checkpoint.name
    again = f", the {distance} steps after it made again" * (distance > 0)
    return ExplainedStep(
        folder.name,
        number,
        config,
        recorder.updates,
        decoder(policy.tokenizer),
        f"answers, rewards and advantages as stored; log-probs and gradient recomputed from "
        f"{weights_of}{again}",
        True,
        logged,
    )


def _steps_since(folder: pathlib.Path, number: int) -> tuple[pathlib.Path | None, int] | None:
    """The last checkpoint before a step (None: the initial model), and how many steps lie between.

    None where the updates since then cannot be made again.
    """
    from groupwise.training.checkpoint import find_damage

    saved = sorted((folder / "checkpoints").glob("step-??????"), reverse=True)
    before = (path for path in saved if int(path.name[5:]) < number)
    checkpoint = next((path for path in before if find_damage(path) is None), None)
    begin = 0 if checkpoint is None else int(checkpoint.name[5:])
    between = range(begin + 1, number)
    if len(between) > FARTHEST or not {*between} <= {*stored_steps(folder)}:
        return None
    return checkpoint, len(between)


def _from_stored(
    folder: pathlib.Path,
    config: Config,
    number: int,
    groups: list[Group],
    logged: Mapping[str, Any],
) -> ExplainedStep:
    """The first update as the stored log-probs tell it; later ones are not known."""
    batch = next(rollout_batch(groups, config).minibatches(config.batch.minibatches))
    only = config.batch.minibatches * config.batch.epochs == 1
    update = Update(
        batch,
        *stored_logprobs(batch),
        entropy_weight=0.0,
        loss=logged.get("loss") if only else None,
        grad_norm=logged.get("grad_norm") if only else None,
        lr=logged.get("lr"),
    )
    which = "" if only else " of the first update"
    bonus = ", without the entropy bonus" if config.algorithm.uses_entropy else ""
    return ExplainedStep(
        folder.name,
        number,
        config,
        [update],
        _stored_decoder(folder, config),
        f"everything as stored; log-probs{which} are the sampler's where the policy's were not "
        f"needed, so the loss{bonus} agrees up to the sampler gap",
        False,
        logged,
    )


def stored_logprobs(batch: Batch) -> tuple[Tensor, Tensor]:
    """Log-probs at a step's start: the policy's where they were stored, else the sampler's.

    Entropies that were not stored are NaN.
    """
    old_BT, entropies_BT = batch.old_logprobs_BT, batch.old_entropies_BT
    assert batch.sampler_logprobs_BT is not None
    logprobs_BT = batch.sampler_logprobs_BT if old_BT is None else old_BT
    unknown_BT = torch.full_like(logprobs_BT, math.nan)
    return logprobs_BT, unknown_BT if entropies_BT is None else entropies_BT


def _check_stored(folder: pathlib.Path, number: int | None, stored: bool) -> int:
    steps = stored_steps(folder)
    if not steps:
        raise RunFolderError(
            f"{folder} has no stored answers; train with tracking.rollouts=1 to explain its steps"
        )
    if number is None:
        saved = (int(path.name[5:]) for path in (folder / "checkpoints").glob("step-??????"))
        at_once = {1, *(step + 1 for step in saved)} & {*steps}
        return steps[-1] if stored or not at_once else max(at_once)
    if number not in steps:
        near = min(steps, key=lambda step: abs(step - number))
        raise RunFolderError(
            f"{folder} has no stored answers of step {number}; the nearest is --step {near} "
            f"(there are {len(steps)} from {steps[0]} to {steps[-1]})"
        )
    return number


def decoder(tokenizer: Any) -> Decode:
    return lambda token: text_of(tokenizer, [token], skip_special_tokens=False)


def _stored_decoder(folder: pathlib.Path, config: Config) -> Decode:
    """The run's tokenizer without its model; token numbers where it cannot be had."""
    from transformers import AutoTokenizer

    from groupwise.errors import ModelError
    from groupwise.policy.pretrained import from_pretrained
    from groupwise.policy.resolve import resolve_model

    try:
        saved = folder / "model"
        source = str(saved) if saved.is_dir() else resolve_model(config.model)
        return decoder(from_pretrained(AutoTokenizer, source))
    except (OSError, ValueError, ModelError):
        return lambda token: f"⟨{token}⟩"
