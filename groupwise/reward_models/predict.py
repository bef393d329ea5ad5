"""What a reward model says: scores of answers, and preferences between two of them.

A preference is the mean of both reading orders, so p(a, b) = 1 - p(b, a) whatever the model
thinks of the first place. Answers are computed in batches of similar length; padding is
masked, so a score depends on the batch only by rounding.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from groupwise.reward_models.encode import EncodedRow, answer_rows, comparison_rows, padded
from groupwise.reward_models.model import RewardModel
from groupwise.rewards.cot import cot_features

Output = Literal["logit", "probability"]

WINDOW = 4
"""Batches whose answers are sorted by length together. The time limit holds for each such part."""


def forward(
    reward_model: RewardModel,
    rows: Sequence[EncodedRow],
    features: Sequence[Sequence[float]] | None,
) -> Tensor:
    """(B, labels) logits of a batch of rows, with gradients if they are on."""
    tokens, mask, types = padded(rows, reward_model.pad_id, reward_model.device)
    inputs: dict[str, Any] = {"input_ids": tokens, "attention_mask": mask}
    if reads_types(reward_model.model):
        inputs["token_type_ids"] = types
    if features is not None:
        inputs["features"] = torch.tensor(features, dtype=torch.float32, device=tokens.device)
    return reward_model.model(**inputs).logits.float()


def reads_types(model: Any) -> bool:
    """Whether the model has an embedding for which part of the input a token belongs to."""
    config = getattr(model.config, "backbone", None) or model.config.to_dict()
    return (config.get("type_vocab_size") or 0) > 1


def score_answers(
    reward_model: RewardModel,
    prompts: Sequence[Any],
    answers: Sequence[str],
    *,
    batch_size: int = 16,
    output: Output = "logit",
) -> Iterator[float]:
    """The score of each answer, in order, as they are computed."""
    for logits in answer_logits(reward_model, prompts, answers, batch_size):
        yield from as_scores(reward_model, logits, output).tolist()


def answer_logits(
    reward_model: RewardModel, prompts: Sequence[Any], answers: Sequence[str], batch_size: int
) -> Iterator[Tensor]:
    """(W, labels) logits of one window of answers after the other."""
    assert reward_model.kind != "preference"
    window = WINDOW * batch_size
    for start in range(0, len(answers), window):
        asked, given = prompts[start : start + window], answers[start : start + window]
        rows = answer_rows(asked, given, reward_model.tokenizer, reward_model.max_tokens)
        features = None
        if reward_model.kind == "cot":
            features = [cot_features(answer).vector() for answer in given]
        yield _in_batches(reward_model, rows, features, batch_size)


def as_scores(reward_model: RewardModel, logits: Tensor, output: Output) -> Tensor:
    """(B,) scores from (B, labels) logits."""
    if reward_model.kind == "cot":
        return reward_model.model.score(logits)
    log_odds = logits[:, 0]
    if logits.shape[1] > 1:
        chosen = logits[:, reward_model.label]
        others = logits.clone()
        others[:, reward_model.label] = -torch.inf
        log_odds = chosen - others.logsumexp(-1)
    return log_odds.sigmoid() if output == "probability" else log_odds


def preferences(
    reward_model: RewardModel,
    prompts: Sequence[Any],
    firsts: Sequence[str],
    seconds: Sequence[str],
    *,
    batch_size: int = 16,
) -> list[float]:
    """How probable it is that each first answer is better than its second; 0.5 for equal ones."""
    assert reward_model.kind == "preference"
    unequal = [i for i, (a, b) in enumerate(zip(firsts, seconds, strict=True)) if a != b]
    asked = [prompts[i] for i in unequal] * 2
    left = [firsts[i] for i in unequal] + [seconds[i] for i in unequal]
    right = [seconds[i] for i in unequal] + [firsts[i] for i in unequal]
    if not unequal:
        return [0.5] * len(firsts)
    rows = comparison_rows(asked, left, right, reward_model.tokenizer, reward_model.max_tokens)
    won = _in_batches(reward_model, rows, None, batch_size)[:, 0].double().sigmoid()
    forth, back = won[: len(unequal)], won[len(unequal) :]
    known = dict(zip(unequal, ((forth - back + 1) / 2).tolist(), strict=True))
    return [known.get(i, 0.5) for i in range(len(firsts))]


@torch.no_grad()
def _in_batches(
    reward_model: RewardModel,
    rows: Sequence[EncodedRow],
    features: Sequence[Sequence[float]] | None,
    batch_size: int,
) -> Tensor:
    """Logits on the CPU in the order of the rows, computed from the shortest to the longest."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].tokens))
    parts = []
    for start in range(0, len(order), batch_size):
        picked = order[start : start + batch_size]
        beside = None if features is None else [features[i] for i in picked]
        parts.append(forward(reward_model, [rows[i] for i in picked], beside).cpu())
    logits = torch.cat(parts)
    unsorted = torch.empty_like(logits)
    unsorted[torch.tensor(order)] = logits
    return unsorted
