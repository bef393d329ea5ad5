"""Our rewards in the signature that TRL calls: f(prompts, completions, **columns) -> list.

For scripts that `groupwise export` writes. A reward keeps its isolation (worker process, time-out,
what happens on an error), and sees what it sees in groupwise: the prefill in front of an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from groupwise.policy.load import pick_device
from groupwise.reward_models.reward import PREFIX, learned_reward
from groupwise.rewards.base import Reward
from groupwise.rewards.scorer import Scorer
from groupwise.types import Problem

PROBLEM_ID, PREFILL = "problem_id", "prefill"
"""Columns of an exported dataset that are not a problem's own."""


def trl_reward(
    name: str,
    source: str,
    options: Mapping[str, Any] | None = None,
    *,
    timeout: float = 30.0,
    on_error: Literal["stop", "skip"] = "stop",
) -> Callable[..., list[float | None]]:
    """trl_reward("correct", "groupwise.rewards.arithmetic:correct")"""
    options = dict(options or {})
    function: Any = source
    if source.startswith(PREFIX):
        function, options = learned_reward(source, options, pick_device("auto")), {}
    scorer = Scorer([Reward(name, function, 1.0, options)], timeout, on_error)

    def reward(
        prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        rows = {key: v for key, v in columns.items() if _is_column(v, len(completions))}
        problems, texts = [], []
        for index, completion in enumerate(completions):
            row = {key: values[index] for key, values in rows.items()}
            prefill = row.pop(PREFILL, None) or ""
            identity = str(row.pop(PROBLEM_ID, index))
            problems.append(Problem(identity, _prompt(prompts[index], prefill), row))
            texts.append(prefill + _text(completion))
        return scorer.score(problems, texts)[name]

    reward.__name__ = name.replace("/", "_")
    return reward


def _is_column(values: Any, count: int) -> bool:
    """TRL passes its trainer's state and helpers among the columns."""
    return isinstance(values, list) and len(values) == count


def _prompt(prompt: Any, prefill: str) -> Any:
    """As the task wrote it: without the prefill that the export put behind it."""
    if isinstance(prompt, str):
        return prompt.removesuffix(prefill)
    turns = tuple(prompt)
    return turns[:-1] if prefill and turns and turns[-1]["role"] == "assistant" else turns


def _text(completion: Any) -> str:
    """TRL gives plain text to plain prompts, and a list of one turn to conversations."""
    return completion if isinstance(completion, str) else completion[0]["content"]
