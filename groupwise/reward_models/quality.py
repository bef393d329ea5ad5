"""How good predicted probabilities are: accuracy, AUC, and whether 0.8 happens 8 times in 10."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Predictions from `low` to `high`: how many, their mean, and how often they came true."""

    low: float
    high: float
    count: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class Quality:
    """accuracy: the share on the right side of 0.5. auc: how often a positive one ranks above a
    negative one (0.5 where there are not both). ece: the mean gap between prediction and truth.
    loss: the cross-entropy."""

    count: int
    loss: float
    accuracy: float
    auc: float
    ece: float
    calibration: tuple[Bin, ...]


def quality(probabilities: Sequence[float], truths: Sequence[bool]) -> Quality:
    """quality([0.9, 0.2], [True, False]).auc == 1.0"""
    assert len(probabilities) == len(truths) and truths
    right = sum(_credit(p, truth) for p, truth in zip(probabilities, truths, strict=True))
    bins = calibration(probabilities, truths)
    ece = sum(b.count * abs(b.predicted - b.observed) for b in bins) / len(truths)
    surprise = sum(_surprise(p, truth) for p, truth in zip(probabilities, truths, strict=True))
    return Quality(
        len(truths),
        surprise / len(truths),
        right / len(truths),
        auc(probabilities, truths),
        ece,
        bins,
    )


def auc(scores: Sequence[float], truths: Sequence[bool]) -> float:
    """The chance that a random positive outscores a random negative; a tie counts half."""
    positives = sum(truths)
    negatives = len(truths) - positives
    if not positives or not negatives:
        return 0.5
    order = sorted(range(len(scores)), key=lambda index: scores[index])
    rank_sum, start = 0.0, 0
    while start < len(order):
        end = start
        while end < len(order) and scores[order[end]] == scores[order[start]]:
            end += 1
        rank = (start + 1 + end) / 2  # tied scores share the mean of their ranks
        rank_sum += rank * sum(truths[index] for index in order[start:end])
        start = end
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def calibration(probabilities: Sequence[float], truths: Sequence[bool]) -> tuple[Bin, ...]:
    """Ten bins of equal width; empty ones are left out."""
    found = []
    for number in range(BINS):
        inside = [
            (p, truth)
            for p, truth in zip(probabilities, truths, strict=True)
            if min(int(p * BINS), BINS - 1) == number
        ]
        if inside:
            predicted = sum(p for p, _ in inside) / len(inside)
            observed = sum(truth for _, truth in inside) / len(inside)
            low, high = number / BINS, (number + 1) / BINS
            found.append(Bin(low, high, len(inside), predicted, observed))
    return tuple(found)


def _surprise(probability: float, truth: bool) -> float:
    return -math.log(max(probability if truth else 1 - probability, 1e-12))


def _credit(probability: float, truth: bool) -> float:
    """1 on the right side of a half, 0 on the wrong one, and a half for no opinion."""
    return 0.5 if probability == 0.5 else float((probability > 0.5) == truth)
