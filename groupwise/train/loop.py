"""The GRPO loop. Read this, step.py and objective/ to know what groupwise does.

A step samples a group of answers to each of N questions, scores them, turns scores into advantages
within each group, and takes gradient steps on the answers. Everything random is keyed by the step
number, so running a step again gives the same result: that is what makes resume exact.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from groupwise.config import Config
from groupwise.diagnose import Watch
from groupwise.errors import Interrupted
from groupwise.load import Parts
from groupwise.objective.advantages import advantages
from groupwise.objective.entropy import adapt_entropy_weight, applied_entropy_weight
from groupwise.rollout.collect import (
    Collected,
    Prompted,
    collect,
    reward_weights,
    sample_groups,
    score_groups,
)
from groupwise.rollout.noise import answer_key
from groupwise.tracking.base import Trackers
from groupwise.tracking.findings import note
from groupwise.tracking.run import RunFolder, read_metrics
from groupwise.train.checkpoint import replace_folder, save_checkpoint, save_model
from groupwise.train.memory_fit import TokenBudget
from groupwise.train.metrics import rollout_metrics
from groupwise.train.sampler import draw
from groupwise.train.signals import StopRequest
from groupwise.train.state import TrainState
from groupwise.train.step import Seen, annotate, update
from groupwise.types import Group

log = logging.getLogger("groupwise")


def run_loop(
    parts: Parts, state: TrainState, run: RunFolder, trackers: Trackers, stop: StopRequest
) -> None:
    """Train from where `state` stands to the last step."""
    config = parts.config
    weights = reward_weights(parts.scorer, config.rollout)
    budget = TokenBudget(config.batch.tokens_per_microbatch)
    watch = Watch(config, read_metrics(run.path))
    parts.engine.sync(version=state.step)
    while state.step < config.steps:
        clock = Clock()
        collected = _take_pending(state) or collect_step(parts, state, clock)
        if stop.requested:
            _save_and_leave(state, run, config.checkpoint.keep, stop, collected)
        with clock.phase("logps"):
            groups = annotate(collected.groups, parts.policy, state.reference, config, budget)
        groups = advantages(groups, config.algorithm, weights)
        with clock.phase("update"):
            metrics = learn(state, groups, config, budget)
        state.cursor += collected.drawn
        if state.reference is not None:
            state.reference.refresh(parts.policy, state.step)
        parts.engine.sync(version=state.step)

        if config.eval.every and state.step % config.eval.every == 0:
            with clock.phase("eval"):
                metrics |= _evaluate(parts, state, run)
        state.seconds += clock.total
        rolled = rollout_metrics(groups, collected.drawn, weights)
        line = {"step": state.step, **metrics, **rolled, **clock.metrics(groups)}
        _log(line, groups, run, trackers, watch)
        if stop.requested:
            _save_and_leave(state, run, config.checkpoint.keep, stop)
        if config.checkpoint.every and state.step % config.checkpoint.every == 0:
            save_checkpoint(state, run.checkpoints, config.checkpoint.keep)


def learn(
    state: TrainState,
    groups: Sequence[Group],
    config: Config,
    budget: TokenBudget | None = None,
    observe: Callable[[Seen], None] | None = None,
) -> dict[str, float]:
    """The optimizer steps on one rollout. Moves weights, moments, entropy weight and step count."""
    torch.manual_seed(answer_key(config.seed, "step", state.step) >> 1)  # dropout, if any
    objective = config.algorithm
    metrics = update(
        groups,
        state.policy,
        state.optimizer,
        config,
        progress=state.step,
        entropy_weight=applied_entropy_weight(state.entropy_weight, state.entropy, objective),
        budget=budget,
        observe=observe,
    )
    state.step += 1
    if "entropy" in metrics:
        state.entropy = metrics["entropy"]
        state.entropy_weight = adapt_entropy_weight(state.entropy_weight, state.entropy, objective)
    return metrics


def collect_step(parts: Parts, state: TrainState, clock: "Clock") -> Collected:
    """The step's groups, scored. What is drawn depends on the data position and the step alone."""
    config = parts.config
    cursor = state.cursor

    def draw_problems(count: int) -> list[Prompted]:
        nonlocal cursor
        problems = draw(parts.problems["train"], cursor, count, config.seed)
        cursor += count
        return problems

    def sample(problems: list[Prompted]) -> list[Group]:
        with clock.phase("generate"):
            groups = sample_groups(
                problems,
                parts.engine,
                parts.policy,
                config.rollout.sampling,
                group_size=config.batch.group_size,
                seed=config.seed,
                step=state.step,
                temperatures=config.rollout.temperature_spread,
            )
        with clock.phase("reward"):
            return score_groups(groups, parts.scorer, config.rollout)

    return collect(draw_problems, sample, config.batch.prompts, config.rollout.max_draws)


def _take_pending(state: TrainState) -> Collected | None:
    """Groups that an earlier process sampled and did not get to learn from."""
    if not state.pending:
        return None
    collected = Collected(state.pending, state.pending_drawn)
    state.pending, state.pending_drawn = [], 0
    return collected


def _save_and_leave(
    state: TrainState,
    run: RunFolder,
    keep: int,
    stop: StopRequest,
    unused: Collected | None = None,
) -> None:
    if unused is not None:
        state.pending, state.pending_drawn = unused.groups, unused.drawn
    folder = save_checkpoint(state, run.checkpoints, keep)
    raise Interrupted(
        f"stopped by {stop.requested} after step {state.step}, saved to {folder}; "
        "the same command goes on from there"
    )


def _evaluate(parts: Parts, state: TrainState, run: RunFolder) -> dict[str, float]:
    """Validation metrics; the best model so far is kept in best/."""
    metrics = parts.evaluate("validation").metrics
    score = metrics.get("accuracy", metrics["reward"])
    if state.best is None or score > state.best:
        state.best = score
        replace_folder(run.path / "best", lambda folder: save_model(parts.policy, folder))
    return {f"eval/{name}": value for name, value in metrics.items()}


def _log(
    line: dict[str, Any], groups: list[Group], run: RunFolder, trackers: Trackers, watch: Watch
) -> None:
    step, every = line["step"], run.config.tracking.rollouts
    if every and step % every == 0:
        run.log_rollouts(step, groups)
    run.log_metrics(line)
    trackers.log(step, line)
    note(watch.add(line), run.path)


@dataclass
class Clock:
    """Seconds per phase of one step: `with clock.phase("update"): ...`"""

    start: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - began

    @property
    def total(self) -> float:
        return time.perf_counter() - self.start

    def metrics(self, groups: list[Group]) -> dict[str, float]:
        """Tokens per second are of the step alone, without its evaluation."""
        tokens = sum(len(c.tokens) for group in groups for c in group.completions)
        phases = {f"seconds/{name}": seconds for name, seconds in self.phases.items()}
        speed = tokens / (self.total - self.phases.get("eval", 0.0))
        return {"seconds": self.total, **phases, "tokens_per_second": speed}
