"""How good predicted probabilities are: accuracy, AUC, and whether 0.8 happens 8 times in 10."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    p, truth = np.array(probabilities, float), np.array(truths, bool)
    bins = calibration(probabilities, truths)
    credit = np.where(p == 0.5, 0.5, (p > 0.5) == truth)  # half for no opinion
    return Quality(
        count=len(truths),
        loss=float(-np.log(np.maximum(np.where(truth, p, 1 - p), 1e-12)).mean()),
        accuracy=float(credit.mean()),
        auc=auc(probabilities, truths),
        ece=sum(b.count * abs(b.predicted - b.observed) for b in bins) / len(truths),
        calibration=bins,
    )


def auc(scores: Sequence[float], truths: Sequence[bool]) -> float:
    """The chance that a random positive outscores a random negative; a tie counts half."""
    values, truth = np.array(scores, float), np.array(truths, bool)
    positives, negatives = values[truth], np.sort(values[~truth])
    if not len(positives) or not len(negatives):
        return 0.5
    below = np.searchsorted(negatives, positives, "left")
    not_above = np.searchsorted(negatives, positives, "right")
    return float((below + not_above).mean() / (2 * len(negatives)))


def calibration(probabilities: Sequence[float], truths: Sequence[bool]) -> tuple[Bin, ...]:
    """Ten bins of equal width; empty ones are left out."""
    p, truth = np.array(probabilities, float), np.array(truths, bool)
    bin_of = np.minimum((p * BINS).astype(int), BINS - 1)
    return tuple(
        Bin(
            low=number / BINS,
            high=(number + 1) / BINS,
            count=int((bin_of == number).sum()),
            predicted=float(p[bin_of == number].mean()),
            observed=float(truth[bin_of == number].mean()),
        )
        for number in np.unique(bin_of).tolist()
    )
