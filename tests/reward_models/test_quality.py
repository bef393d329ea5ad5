"""Accuracy, AUC and calibration against numbers worked out by hand."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.reward_models.quality import auc, calibration, quality


def test_auc_by_hand() -> None:
    assert auc([0.9, 0.8, 0.3, 0.1], [True, False, True, False]) == 0.75
    assert auc([0.9, 0.2], [True, False]) == 1.0
    assert auc([0.1, 0.2], [True, False]) == 0.0
    assert auc([0.5, 0.5, 0.5], [True, False, True]) == 0.5
    assert auc([0.3, 0.4], [True, True]) == 0.5


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.2, 0.7, 1.0]), st.booleans()), min_size=1))
def test_auc_is_the_share_of_pairs_in_the_right_order(found: list[tuple[float, bool]]) -> None:
    scores, truths = [s for s, _ in found], [t for _, t in found]
    pairs = list(itertools.product([s for s, t in found if t], [s for s, t in found if not t]))
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs)
    assert auc(scores, truths) == pytest.approx(wins / len(pairs) if pairs else 0.5)


def test_calibration_counts_what_came_true_in_each_bin() -> None:
    bins = calibration([0.05, 0.08, 0.95, 1.0, 0.93], [False, True, True, True, False])
    assert [(b.low, b.high, b.count) for b in bins] == [(0.0, 0.1, 2), (0.9, 1.0, 3)]
    assert bins[0].predicted == pytest.approx(0.065) and bins[0].observed == 0.5
    assert bins[1].predicted == pytest.approx(0.96) and bins[1].observed == pytest.approx(2 / 3)


def test_quality_by_hand() -> None:
    found = quality([0.8, 0.8, 0.2, 0.5], [True, False, False, True])
    assert found.accuracy == (1 + 0 + 1 + 0.5) / 4
    assert found.loss == pytest.approx(-math.log(0.8 * 0.2 * 0.8 * 0.5) / 4)
    assert found.auc == 0.625  # of four pairs: 0.8 beats 0.2 and ties 0.8, 0.5 beats 0.2 only
    assert found.ece == pytest.approx((2 * 0.3 + 0.2 + 0.5) / 4)
