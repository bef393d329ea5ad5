"""What a model earns before training, by the rewards of its recipe."""

import statistics

from groupwise.config import Config
from groupwise.errors import RewardError
from groupwise.load import load_parts
from groupwise.rollout.collect import sample_groups, score_groups


def mean_reward(config: Config, count: int) -> float:
    """Over the answers to `count` training problems, as many to each as in training."""
    with load_parts(config) as parts:
        groups = sample_groups(
            parts.problems["train"][:count],
            parts.engine,
            parts.policy,
            config.rollout.sampling,
            group_size=config.batch.group_size,
            seed=config.seed,
            step="bench",
            episodes=parts.episodes,
        )
        scored = score_groups(groups, parts.scorer, config.rollout, parts.episodes)
    rewards = [reward for group in scored for reward in group.rewards if reward is not None]
    if not rewards:
        raise RewardError("no reward applies to what the model wrote")
    return statistics.fmean(rewards)
