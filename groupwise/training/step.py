"""One step of GRPO. Read this, batch.py, update.py and objective/ to know what groupwise does.

    for _ in range(config.steps):
        step = grpo_step(parts, state)
        print(step.metrics["loss"], step.batch.groups[0].advantages)

`groupwise train` puts logging, evaluation, checkpoints and signals around it (loop.py). Everything
random is keyed by the step number, so making a step again gives the same result: that is what makes
resume exact.
"""

from dataclasses import dataclass, replace

from groupwise.batch import Batch
from groupwise.load import Parts
from groupwise.rollout.groups import Rollout
from groupwise.training.clock import phase
from groupwise.training.collect import collect
from groupwise.training.exchange import assign_over_ranks
from groupwise.training.recorder import Recorder
from groupwise.training.state import TrainState
from groupwise.training.update import annotate, learn, rollout_batch


@dataclass(frozen=True)
class Step:
    """What a step sampled and learned."""

    batch: Batch
    drawn: int
    """Problems drawn: more than there are groups when dynamic sampling replaced some."""
    metrics: dict[str, float]


def grpo_step(
    parts: Parts,
    state: TrainState,
    rollout: Rollout | None = None,
    recorder: Recorder | None = None,
) -> Step:
    """Sample groups of answers, score them, and learn from those that differ from their group.

    `rollout`: groups of this step that were sampled and scored before. Moves weights, moments, step
    count and data position.
    """
    config, world = parts.config, state.optimizer.world

    # N problems, G answers to each, a reward for every answer.
    rollout = rollout or collect(parts, state)

    # Old and reference log-probs: what must be known before the first update, where it is needed.
    with phase("logprobs"):
        batch = rollout_batch(rollout.groups, config)
        batch = replace(batch, group_indices=rollout.group_indices, group_total=rollout.group_total)
        batch = annotate(batch, state, config)

    # How much better is each answer than the others of its group?
    weights, turn_weight = parts.reward_weights, config.environment.turn_weight
    batch = assign_over_ranks(batch, config.algorithm, weights, world, turn_weight)

    # Make answers that beat their group more likely, the others less.
    with phase("update"):
        metrics = learn(batch, state, config, recorder)

    state.cursor += rollout.drawn
    if state.reference is not None:
        state.reference.refresh(parts.policy, state.step)
    return Step(batch, rollout.drawn, metrics)
