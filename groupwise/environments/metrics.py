"""Numbers that describe a step's episodes. Every mean is over episodes, never over turns."""

import json
from collections.abc import Sequence

from groupwise.distributed.world import ALONE, World
from groupwise.types import Completion, Episode, Group


def episode_metrics(groups: Sequence[Group], world: World = ALONE) -> dict[str, float]:
    """Empty where answers are no episodes. Each rank has its own groups.

    tokens counts what the model wrote in all its turns. episode/waiting is the share of the
    episodes' time in which their environment was waited for, episode/called that of episodes with a
    call, episode/unanswered that of those which a limit ended at a call, and episode/repeated the
    share of an episode's calls that were made in it before, with the same arguments.
    """
    values = _episode_values(groups)
    longest = world.max(int(max(values.get("tokens", ()), default=-1)))
    metrics = world.means(values)
    if longest < 0:
        return {}
    waited, seconds = metrics.pop("waited"), metrics.pop("seconds")
    return metrics | {"tokens_max": float(longest), "episode/waiting": waited / max(seconds, 1e-9)}


def _episode_values(groups: Sequence[Group]) -> dict[str, list[float]]:
    """What the metrics are means of."""
    pairs = [(c, c.episode) for group in groups for c in group.completions if c.episode is not None]
    episodes = [episode for _, episode in pairs]
    values = {
        "tokens": [float(sum(episode.turns)) for episode in episodes],
        "truncated": [float(answer.truncated) for answer, _ in pairs],
        "episode/turns": [float(len(episode.turns)) for episode in episodes],
        "episode/turn_limit": [float(answer.stop == "turns") for answer, _ in pairs],
        "episode/tools": [float(episode.tools) for episode in episodes],
        "episode/called": [float(episode.calls > 0) for episode in episodes],
        "episode/unanswered": [float(_unanswered(answer, episode)) for answer, episode in pairs],
        "episode/repeated": [_repeated(episode) for episode in episodes],
        "episode/calls": [float(episode.calls) for episode in episodes],
        "episode/malformed": [float(episode.malformed) for episode in episodes],
        "episode/failed": [float(bool(episode.error)) for episode in episodes],
        "episode/split": [float(episode.segments > 1) for episode in episodes],
        "waited": [episode.waited for episode in episodes],
        "seconds": [episode.seconds for episode in episodes],
    }
    for name in sorted({name for episode in episodes for name in episode.scores}):
        known = [score for e in episodes if (score := e.scores.get(name)) is not None]
        if known:
            values[f"episode/score/{name}"] = known
    return values


def _unanswered(answer: Completion, episode: Episode) -> bool:
    turns = [message for message in episode.messages if message.get("role") == "assistant"]
    calling = bool(turns and turns[-1].get("tool_calls"))
    return calling and answer.stop in ("turns", "length")


def _repeated(episode: Episode) -> float:
    calls = [
        json.dumps(call.get("function"), sort_keys=True, default=str)
        for message in episode.messages
        for call in message.get("tool_calls") or ()
    ]
    return 1 - len(set(calls)) / len(calls) if calls else 0.0
