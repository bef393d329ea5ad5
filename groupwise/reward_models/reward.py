"""A reward model as a reward of a recipe: `{name: "model:runs/rm", options: {device: cpu}}`.

Scalar and CoT-aware models score each answer by itself. A preference model compares an answer with
every other one of its group: the reward is its mean win, and a preference closer to 0.5 than
`threshold` is a tie. An answer alone in its group, as in greedy evaluation, gets 0.5.

They run in a thread of the training process, not in the rewards' worker: they share its device and
its memory, and they are ours, so a crash needs no containment.
"""

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from groupwise.errors import ConfigError, ModelError
from groupwise.extensions import nearest
from groupwise.reward_models.encode import as_answer
from groupwise.reward_models.model import RewardModel, load_reward_model
from groupwise.reward_models.predict import Output, preferences, score_answers

PREFIX = "model:"

THRESHOLD = 0.1
"""A preference within so much of 0.5 is a tie."""


def learned_reward(name: str, options: Mapping[str, Any], device: torch.device) -> Any:
    """The reward that a recipe's `model:...` names. `device` is the policy's, for `auto`."""
    _check_names(name, options)
    try:
        return _build(name.removeprefix(PREFIX), device, **options)
    except ModelError as error:
        raise ModelError(f"reward {name!r}: {error}") from error


def _build(
    path: str,
    policy_device: torch.device,
    *,
    device: str = "auto",
    batch_size: int = 16,
    max_tokens: int | None = None,
    output: Output | None = None,
    label: str | int | None = None,
    threshold: float | None = None,
) -> Any:
    """The options of a learned reward, and their defaults."""
    for option, value in (("batch_size", batch_size), ("max_tokens", max_tokens)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ModelError(f"{option} is {value!r}; it must be a whole number from 1")
    chosen = policy_device if device == "auto" else _device(device)
    reward_model = load_reward_model(path, chosen, max_tokens=max_tokens, label=label)
    if reward_model.kind == "preference":
        if output is not None:
            raise ModelError("`output` is for scalar models; a preference model gives mean wins")
        threshold = THRESHOLD if threshold is None else threshold
        if not isinstance(threshold, int | float) or not 0 <= threshold < 0.5:
            raise ModelError(f"threshold is {threshold!r}; it must be from 0 to below 0.5")
        return PreferenceReward(reward_model, batch_size, threshold)
    if threshold is not None:
        raise ModelError(f"`threshold` is for preference models; this one is {reward_model.kind}")
    if reward_model.kind == "cot" and output is not None:
        raise ModelError("`output` is for scalar models; a CoT-aware one gives a weighted sum")
    if output not in (None, *get_args(Output)):
        raise ModelError(f"output is {output!r}; it must be logit or probability")
    return ScoreReward(reward_model, batch_size, output or "logit")


@dataclass(frozen=True)
class ScoreReward:
    """A scalar or CoT-aware model's score of each answer.

    On a CPU, where runs repeat to the bit, group by group: which groups are scored in one call
    depends on time, and how a score is rounded on the batch that it is computed in.
    """

    reward_model: RewardModel
    batch_size: int
    output: Output

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], group_ids: Sequence[int]
    ) -> Iterator[float]:
        answers = [as_answer(completion) for completion in completions]
        on_cpu = self.reward_model.device.type == "cpu"
        for part in by_group(group_ids) if on_cpu else [slice(None)]:
            yield from score_answers(
                self.reward_model,
                prompts[part],
                answers[part],
                batch_size=self.batch_size,
                output=self.output,
            )


@dataclass(frozen=True)
class PreferenceReward:
    """Each answer's mean win over the others of its group."""

    reward_model: RewardModel
    batch_size: int
    threshold: float

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], group_ids: Sequence[int]
    ) -> Iterator[float]:
        answers = [as_answer(completion) for completion in completions]
        for part in by_group(group_ids):
            yield from mean_wins_of(
                self.reward_model,
                prompts[part.start],
                answers[part],
                self.batch_size,
                self.threshold,
            )


def by_group(group_ids: Sequence[int]) -> Iterator[slice]:
    """Where each group is: [7, 7, 9] gives slice(0, 2), slice(2, 3)."""
    start = 0
    for _, members in itertools.groupby(group_ids):
        end = start + len(list(members))
        yield slice(start, end)
        start = end


def mean_wins_of(
    reward_model: RewardModel,
    prompt: Any,
    answers: Sequence[str],
    batch_size: int,
    threshold: float = THRESHOLD,
) -> list[float]:
    """The mean wins of a prompt's answers, each pair of different ones compared once."""
    pairs = list(itertools.combinations(dict.fromkeys(answers), 2))
    won = preferences(
        reward_model,
        [prompt] * len(pairs),
        [a for a, _ in pairs],
        [b for _, b in pairs],
        batch_size=batch_size,
    )
    return mean_wins(answers, dict(zip(pairs, won, strict=True)), threshold)


def mean_wins(
    answers: Sequence[str], probabilities: Mapping[tuple[str, str], float], threshold: float
) -> list[float]:
    """Each answer's mean win over the others; equal answers tie.

    mean_wins(["a", "b", "b"], {("a", "b"): 0.9}, 0.1) == [0.9, 0.3, 0.3]
    """

    def win(a: str, b: str) -> float:
        if a == b:
            return 0.5
        asked = (a, b) in probabilities
        p = probabilities[a, b] if asked else probabilities[b, a]
        if abs(p - 0.5) < threshold:  # of the one that is known: 1 - p may round to the other side
            return 0.5
        return p if asked else 1 - p

    wins = [[win(a, b) for j, b in enumerate(answers) if j != i] for i, a in enumerate(answers)]
    return [sum(line) / len(line) if line else 0.5 for line in wins]


def _check_names(name: str, options: Mapping[str, Any]) -> None:
    known = [
        p.name for p in inspect.signature(_build).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    for option in options:
        if option not in known:
            raise ConfigError(
                f"reward {name!r} has no option {option!r}{nearest(option, known)}; "
                f"it takes: {', '.join(known)}"
            )


def _device(wanted: str) -> torch.device:
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, TypeError):
        raise ModelError(
            f"there is no device {wanted!r}; use auto, cpu, cuda, cuda:1 ..."
        ) from None
    return device
