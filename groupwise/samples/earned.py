"""What a model earns before training, by the rewards of its recipe."""

import statistics

from groupwise.config import Config
from groupwise.errors import RewardError
from groupwise.load import load_parts


def mean_reward(config: Config, count: int) -> float:
    """Over the answers to `count` training problems, as many to each as in training."""
    with load_parts(config) as parts:
        problems, sampling = parts.problems["train"][:count], config.rollout.sampling
        size = config.batch.group_size
        scored = parts.score(parts.sample_groups(problems, sampling, group_size=size, step="bench"))
    rewards = [reward for group in scored for reward in group.rewards if reward is not None]
    if not rewards:
        raise RewardError("no reward applies to what the model wrote")
    return statistics.fmean(rewards)
