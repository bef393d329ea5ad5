"""A step's numbers under TRL's names."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from groupwise.training.metrics import mean, std
from groupwise.types import Completion, Group

FAILED_CALL = "error: "
"""How the reply to a tool call begins that could not be read, made, or ended."""


class MetricMeans:
    """Values between two logs, by name; a log has their means."""

    def __init__(self) -> None:
        self._values: defaultdict[str, list[float | None]] = defaultdict(list)

    def add(self, metrics: Mapping[str, float | None]) -> None:
        for name, value in metrics.items():
            self._values[name].append(value)

    def means(self) -> dict[str, float | None]:
        """And begin anew. None where a metric had no value."""
        means: dict[str, float | None] = {}
        for name, values in self._values.items():
            known = [v for v in values if v is not None and not math.isnan(v)]
            means[name] = sum(known) / len(known) if known else None
        self._values.clear()
        return means


def answer_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """Lengths, rewards and tool calls of a rollout."""
    answers = [c for group in groups for c in group.completions if c.segment == 0]
    lengths = [float(sum(c.episode.turns) if c.episode else c.length) for c in answers]
    whole = [n for n, c in zip(lengths, answers, strict=True) if not c.truncated] or [0.0]
    metrics: dict[str, float | None] = {
        "completions/clipped_ratio": mean([float(c.truncated) for c in answers])
    }
    for kind, values in (("length", lengths), ("terminated_length", whole)):
        metrics[f"completions/mean_{kind}"] = mean(values)
        metrics[f"completions/min_{kind}"] = min(values)
        metrics[f"completions/max_{kind}"] = max(values)
    for name in groups[0].scores:
        scores = [s for group in groups for s in group.scores[name] if s is not None]
        metrics[f"rewards/{name}/mean"] = mean(scores) if scores else None
        metrics[f"rewards/{name}/std"] = std(scores) if scores else None
    rewards = [r for group in groups for r in group.rewards if r is not None]
    metrics["reward"] = mean(rewards) if rewards else None
    metrics["reward_std"] = std(rewards) if rewards else None
    metrics["frac_reward_zero_std"] = mean([float(not group.has_spread) for group in groups])
    return metrics | _tool_metrics(answers)


def _tool_metrics(answers: Sequence[Completion]) -> dict[str, float]:
    episodes = [c.episode for c in answers if c.episode is not None]
    if not episodes:
        return {}
    calls = sum(episode.calls - episode.malformed for episode in episodes)  # those are text
    failed = sum(
        message.get("role") == "tool" and str(message.get("content")).startswith(FAILED_CALL)
        for episode in episodes
        for message in episode.messages
    )
    return {
        "tools/call_frequency": calls / len(episodes),
        "tools/failure_frequency": failed / calls if calls else 0.0,
    }


def update_metrics(step: Mapping[str, float], entropy_weight: float | None) -> dict[str, float]:
    """What an optimizer step measured; `entropy_weight` where there is an entropy bonus."""
    metrics = {name: step[name] for name in ("entropy", "kl") if name in step}
    if "clip_low" in step:
        low, high = step["clip_low"], step["clip_high"]
        metrics |= {
            "clip_ratio/low_mean": low,
            "clip_ratio/low_min": low,
            "clip_ratio/high_mean": high,
            "clip_ratio/high_max": high,
            "clip_ratio/region_mean": low + high,
        }
    if "sampler_gap" in step:
        metrics["sampling/sampling_logp_difference/mean"] = step["sampler_gap"]
    if entropy_weight is not None:
        metrics["entropy_coef"] = entropy_weight
        metrics["policy_loss"] = step["loss"] + entropy_weight * step.get("entropy", 0.0)
    return metrics


def token_count(groups: Sequence[Group]) -> int:
    """Tokens of prompts and answers, a prompt counted for each of its answers."""
    return sum(len(g.prompt_tokens) + len(c.tokens) for g in groups for c in g.completions)
