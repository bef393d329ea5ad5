"""Fit a reward model, and measure one.

Scored answers are learned with cross-entropy against their scores (scaled to 0..1 by the smallest
and largest there are), pairs with Bradley-Terry: the log-odds that one answer is better is the
difference of their scores. A preference model reads both answers, in both orders each time it sees
a pair. The second head of a CoT-aware model learns `reasoning_quality` of every text.

After each epoch the problems held out are scored; the weights of the epoch with the least loss
there stay, and fitting ends when `patience` epochs brought nothing better. The seed decides
everything: the same data, seed and machine give the same weights.
"""

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from groupwise.errors import DataError
from groupwise.reward_models.encode import EncodedRow, answer_rows, comparison_rows
from groupwise.reward_models.examples import Examples, pairs_of
from groupwise.reward_models.model import RewardModel
from groupwise.reward_models.predict import answer_logits, as_scores, forward, preferences
from groupwise.reward_models.quality import Quality, quality
from groupwise.rewards.cot import cot_features, reasoning_quality

WARMUP = 0.1


@dataclass(frozen=True)
class FitSettings:
    epochs: int = 10
    batch_size: int = 32
    lr: float = 5e-4
    weight_decay: float = 0.01
    patience: int = 3
    clip_norm: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Item:
    """What one loss term is about: the row of an answer, or two rows that are held together."""

    rows: tuple[EncodedRow, ...]
    target: float
    features: tuple[tuple[float, ...], ...] = ()
    reasoning: tuple[float, ...] = ()


@dataclass(frozen=True)
class Epoch:
    epoch: int
    loss: float
    validation: Quality


@dataclass(frozen=True)
class Fitted:
    """What fitting did: every epoch, and the one whose weights stayed."""

    epochs: tuple[Epoch, ...]
    best: Epoch

    def json(self) -> dict[str, Any]:
        epochs = [
            {"epoch": e.epoch, "loss": e.loss, "accuracy": e.validation.accuracy,
             "auc": e.validation.auc}
            for e in self.epochs
        ]  # fmt: skip
        return {"best_epoch": self.best.epoch, **asdict(self.best.validation), "history": epochs}


def fit(
    reward_model: RewardModel,
    train: Examples,
    validation: Examples,
    settings: FitSettings,
    progress: Callable[[float, str], None] = lambda share, line: None,
) -> Fitted:
    """Fit in place. `progress` gets the share that is done and a line about the last epoch."""
    items = make_items(reward_model, train)
    if not items:
        raise DataError("no two answers to one problem have different scores: nothing to compare")
    model = reward_model.model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
    )
    batches = math.ceil(len(items) / settings.batch_size)
    total, done, line = batches * settings.epochs, 0, ""
    epochs: list[Epoch] = []
    best, weights = None, None
    with torch.random.fork_rng(devices=_devices(reward_model)):
        torch.manual_seed(settings.seed)
        for number in range(1, settings.epochs + 1):
            model.train()
            losses = []
            for batch in _shuffled(items, settings.batch_size, f"{settings.seed}/{number}"):
                for group in optimizer.param_groups:
                    group["lr"] = settings.lr * rate_at(done, total)
                loss = batch_loss(reward_model, batch)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
                optimizer.step()
                losses.append(loss.item())
                done += 1
                progress(done / total, line)
            model.eval()
            measured = measure(reward_model, validation, settings.batch_size)
            epochs.append(Epoch(number, sum(losses) / len(losses), measured))
            line = f"loss {epochs[-1].loss:.3f}  AUC {measured.auc:.3f}"
            if best is None or measured.loss < best.validation.loss:
                best, weights = epochs[-1], copy.deepcopy(model.state_dict())
            elif number - best.epoch >= settings.patience:
                break
    assert best is not None and weights is not None
    model.load_state_dict(weights)
    progress(1.0, line)
    return Fitted(tuple(epochs), best)


def make_items(reward_model: RewardModel, examples: Examples) -> list[Item]:
    """Everything tokenized once."""
    if reward_model.kind == "preference":
        return _comparisons(reward_model, examples)
    if examples.pairs:
        pairs = examples.pairs
        prompts = [pair.prompt for pair in pairs]
        firsts = _answers(reward_model, prompts, [pair.first for pair in pairs])
        seconds = _answers(reward_model, prompts, [pair.second for pair in pairs])
        return [
            Item(a.rows + b.rows, pair.target, a.features + b.features, a.reasoning + b.reasoning)
            for pair, a, b in zip(pairs, firsts, seconds, strict=True)
        ]
    scored = examples.scored
    items = _answers(reward_model, [s.prompt for s in scored], [s.completion for s in scored])
    targets = scaled([s.score for s in scored])
    return [replace(item, target=t) for item, t in zip(items, targets, strict=True)]


def batch_loss(reward_model: RewardModel, items: Sequence[Item]) -> Tensor:
    rows = [row for item in items for row in item.rows]
    features = [line for item in items for line in item.features] or None
    logits = forward(reward_model, rows, features)
    device = logits.device
    targets = torch.tensor([item.target for item in items], device=device)
    paired = len(items[0].rows) == 2
    answer = logits[:, 0].reshape(len(items), -1)
    if reward_model.kind == "preference":
        both = torch.stack([targets, 1 - targets], dim=-1)
        return cross_entropy(answer, both)
    log_odds = answer[:, 0] - answer[:, 1] if paired else answer[:, 0]
    loss = cross_entropy(log_odds, targets)
    if reward_model.kind == "cot":
        reasoning = [value for item in items for value in item.reasoning]
        loss = loss + cross_entropy(logits[:, 1], torch.tensor(reasoning, device=device))
    return loss


def measure(reward_model: RewardModel, examples: Examples, batch_size: int = 32) -> Quality:
    """How well its probabilities agree with the examples.

    Of scored answers: whether the score is above the middle of the range. Of pairs: which of the
    two is better, asked both ways round; ties ask nothing. A preference model is always asked
    about pairs. A CoT-aware model is measured by its head for answers.
    """
    if reward_model.kind == "preference" or examples.pairs:
        return _measure_pairs(reward_model, examples, batch_size)
    scored = examples.scored
    prompts, texts = [s.prompt for s in scored], [s.completion for s in scored]
    probabilities = [_sigmoid(x) for x in _log_odds(reward_model, prompts, texts, batch_size)]
    return quality(probabilities, [target > 0.5 for target in scaled([s.score for s in scored])])


def scaled(scores: Sequence[float]) -> list[float]:
    """Scores as targets from 0 to 1; those of 0 and 1 stay as they are."""
    low, high = min(0.0, *scores), max(1.0, *scores)
    return [(score - low) / (high - low) for score in scores]


def rate_at(done: int, total: int) -> float:
    """The learning rate's factor: up over the first tenth, then down to nothing."""
    warm = max(1, round(WARMUP * total))
    return (done + 1) / warm if done < warm else max(0.0, (total - done) / (total - warm + 1))


def _answers(
    reward_model: RewardModel, prompts: Sequence[Any], answers: Sequence[str]
) -> list[Item]:
    rows = answer_rows(prompts, answers, reward_model.tokenizer, reward_model.max_tokens)
    if reward_model.kind != "cot":
        return [Item((row,), 0.0) for row in rows]
    return [
        Item((row,), 0.0, (cot_features(text).vector(),), (reasoning_quality(text),))
        for row, text in zip(rows, answers, strict=True)
    ]


def _comparisons(reward_model: RewardModel, examples: Examples) -> list[Item]:
    pairs = examples.pairs or pairs_of(examples.scored)
    prompts, limit = [pair.prompt for pair in pairs], reward_model.max_tokens
    firsts, seconds = [pair.first for pair in pairs], [pair.second for pair in pairs]
    forth = comparison_rows(prompts, firsts, seconds, reward_model.tokenizer, limit)
    back = comparison_rows(prompts, seconds, firsts, reward_model.tokenizer, limit)
    return [Item((a, b), pair.target) for pair, a, b in zip(pairs, forth, back, strict=True)]


def _measure_pairs(reward_model: RewardModel, examples: Examples, batch_size: int) -> Quality:
    pairs = [p for p in examples.pairs or pairs_of(examples.scored) if p.target != 0.5]
    if not pairs:
        raise DataError("no two answers to one problem have different scores: nothing to measure")
    prompts = [pair.prompt for pair in pairs]
    firsts, seconds = [pair.first for pair in pairs], [pair.second for pair in pairs]
    if reward_model.kind == "preference":
        won = preferences(reward_model, prompts, firsts, seconds, batch_size=batch_size)
    else:
        a = _log_odds(reward_model, prompts, firsts, batch_size)
        b = _log_odds(reward_model, prompts, seconds, batch_size)
        won = [_sigmoid(x - y) for x, y in zip(a, b, strict=True)]
    return quality([*won, *(1 - p for p in won)], [True] * len(won) + [False] * len(won))


def _log_odds(
    reward_model: RewardModel, prompts: Sequence[Any], answers: Sequence[str], batch_size: int
) -> list[float]:
    log_odds: list[float] = []
    for logits in answer_logits(reward_model, prompts, answers, batch_size):
        is_cot = reward_model.kind == "cot"
        log_odds += (logits[:, 0] if is_cot else as_scores(reward_model, logits, "logit")).tolist()
    return log_odds


def _shuffled(items: Sequence[Item], size: int, key: str) -> Iterator[list[Item]]:
    """Batches in a random order. Not by length: short answers are often the wrong ones."""
    order = list(items)
    random.Random(key).shuffle(order)
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _devices(reward_model: RewardModel) -> list[torch.device]:
    return [reward_model.device] if reward_model.device.type == "cuda" else []


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
