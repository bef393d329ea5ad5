"""Rewards as values: a name, a function and a weight; what a function may ask for; the sum.

Two kinds of function are rewards, told apart by the names of their parameters:

    def f(prompts, completions, **columns) -> list[float | None]  # TRL's: all answers at once
    def f(completion, answer) -> float | bool | None  # ours: one answer; names what it wants

As in TRL, `completions` are lists of messages where prompts are conversations. `completion` is
always text; a function for all answers at once that wants text names `texts` instead.
The first may name `group_ids` too: a number for each answer that those to one problem, sampled side
by side, share. And it may yield its scores instead of returning them: each step then has the time
limit that otherwise the whole call has.

Nothing here imports torch: the worker process that runs rewards must start quickly.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from groupwise.errors import RewardError

Score = float | None
"""None: the reward has nothing to say about this answer, which then counts without it."""


_CHECK, _SECONDS = "__groupwise_check__", "__groupwise_seconds__"


@dataclass(frozen=True)
class Reward:
    """Reward("brief", "my_rewards.py:brief", weight=0.1, options={"limit": 200})

    `function` is a callable, or says where one is: `file.py:function` or `package.module:function`.
    `options` are further keyword arguments for it.
    """

    name: str
    function: Callable[..., Any] | str
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Signature:
    """What a reward function asks for: a plain value that a worker can tell to its parent."""

    batch: bool
    """TRL's signature: one call for all answers."""
    required: tuple[str, ...]
    """Parameters that a column or an option must fill."""
    optional: tuple[str, ...]
    """Parameters that a column or an option may fill."""
    takes_any: bool
    """It has **keywords, so every column goes in."""
    asynchronous: bool

    @property
    def given(self) -> tuple[str, ...]:
        """The arguments that are no columns."""
        return _given(self.batch)

    def names(self, argument: str) -> bool:
        """Only a function that names `group_ids` or `texts` gets it: to others it would be a
        column."""
        return self.batch and argument in self.optional

    def accepts(self, name: str) -> bool:
        return self.takes_any or name in self.required or name in self.optional


def with_own_limits(
    check: Callable[[], object], seconds: Callable[..., float]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For an asynchronous function that watches over its own time.

    `check` is called when a run starts, and raises RewardError if the function cannot work here.
    `seconds` gets the function's arguments and says how long one answer may rightly take: so much
    is added to the time limit on rewards.
    """

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, _CHECK, check)
        setattr(function, _SECONDS, seconds)
        return function

    return mark


def check_usable(function: Callable[..., Any]) -> None:
    """Raises RewardError if the function says that it cannot work on this machine."""
    getattr(function, _CHECK, lambda: None)()


def own_seconds(function: Callable[..., Any], arguments: Mapping[str, Any]) -> float:
    """How long one call may take beyond the time limit on rewards, as the function says."""
    try:
        return float(getattr(function, _SECONDS, lambda **_: 0.0)(**arguments))
    except Exception:  # of columns that do not fit: the call itself will say so
        return 0.0


def signature_of(function: Callable[..., Any]) -> Signature:
    """How to call it. Raises RewardError for a function that is no reward."""
    name = getattr(function, "__name__", repr(function))
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"{name} does not tell its parameters ({error}): wrap it in a Python function "
            "def reward(completion): ..."
        ) from None
    names = [p.name for p in parameters]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    batch = bool({"completions", "texts"} & {*names})
    batch = batch or ("completion" not in names and takes_any)
    if not batch and "completion" not in names:
        raise RewardError(
            f"{name}({', '.join(names)}) has neither a parameter `completion` (one answer) "
            "nor `texts` or `completions` (all of them, the second as in TRL): name one of them so"
        )
    given = _given(batch)
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    positional = [p.name for p in named if p.kind is p.POSITIONAL_ONLY]
    if positional:
        raise RewardError(
            f"{name}: rewards are called with keywords, so remove the `/` after {positional[-1]}"
        )
    return Signature(
        batch=batch,
        required=tuple(p.name for p in named if p.default is p.empty and p.name not in given),
        optional=tuple(p.name for p in named if p.default is not p.empty or p.name in given),
        takes_any=takes_any,
        asynchronous=inspect.iscoroutinefunction(function)
        or inspect.iscoroutinefunction(getattr(function, "__call__", None)),  # noqa: B004
    )


def _given(batch: bool) -> tuple[str, ...]:
    batched = ("prompts", "completions", "group_ids", "texts")
    return batched if batch else ("prompt", "completion")


def check_arguments(reward: Reward, signature: Signature, columns: Iterable[str]) -> None:
    """Raises RewardError when a parameter has nothing to fill it, or an option no parameter."""
    columns = sorted(columns)
    missing = [n for n in signature.required if n not in columns and n not in reward.options]
    if missing:
        raise RewardError(
            f"reward {reward.name!r} needs {_listed(missing)}, which the task does not have. "
            f"Its columns are: {_listed(columns) if columns else 'none'}. "
            "Rename the parameter, give it a default, or set it under the reward's options"
        )
    unknown = [n for n in reward.options if not signature.accepts(n) or n in signature.given]
    if unknown:
        known = [n for n in (*signature.required, *signature.optional) if n not in signature.given]
        raise RewardError(
            f"reward {reward.name!r} has no parameter for the option {_listed(unknown)}. "
            f"It takes: {_listed(known) if known else 'no options'}"
        )


def weighted(
    scores: Mapping[str, Sequence[Score]], weights: Mapping[str, float]
) -> list[float | None]:
    """The weighted sum of each answer's scores. None is left out; only Nones give None.

    weighted({"right": [1, None], "form": [0.5, None]}, {"right": 1, "form": 0.2}) == [1.1, None]
    """
    totals: list[float | None] = []
    for line in zip(*scores.values(), strict=True):
        known = [
            (weights[n], score) for n, score in zip(scores, line, strict=True) if score is not None
        ]
        totals.append(math.fsum(weight * score for weight, score in known) if known else None)
    return totals


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
