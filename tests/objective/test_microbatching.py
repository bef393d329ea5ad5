"""The gradient of an optimizer step does not depend on how the step is cut, ordered or padded."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from groupwise.batch import Denominator
from groupwise.objective.objective import PRESETS, Objective
from random_steps import MAX_TOKENS, Tokens, gradients, objective, policy_loss, random_step

B, T = 8, 6
CUTTABLE = [preset for preset in PRESETS if preset != "bnpo"]


def pick(x: Tokens, rows: list[int]) -> Tokens:
    """Some answers as a micro-batch of their own, padded no wider than they need."""
    width = max(1, int((x.mask_BT[rows] * torch.arange(1, T + 1)).max()))
    parts = {name: value[rows][:, :width] for name, value in vars(x).items() if value is not None}
    return replace(x, **parts)


@st.composite
def cuts(draw) -> list[list[int]]:
    """All answers, in any order, in micro-batches of any sizes."""
    order = draw(st.permutations(range(B)))
    edges = sorted({0, B, *draw(st.sets(st.integers(1, B - 1)))})
    return [order[a:b] for a, b in pairwise(edges)]


def accumulated(x: Tokens, o: Objective, over: Denominator, cut: list[list[int]]) -> list[Tensor]:
    """The summed loss of micro-batches and its gradients, one backward pass for each."""
    total = [torch.zeros((), dtype=torch.float64), torch.zeros(B, T), torch.zeros(B, T)]
    for rows in cut:
        loss, _ = policy_loss(pick(x, rows), o, over, entropy_weight=0.3)
        parts = [loss.detach(), *gradients(loss, x)]
        total = [a + b for a, b in zip(total, parts, strict=True)]
    return total


@pytest.mark.parametrize("preset", CUTTABLE)
@settings(max_examples=12, deadline=None)
@given(cut=cuts(), seed=st.integers(0, 2**16))
def test_gradient_is_the_same_however_a_step_is_cut_and_ordered(preset, cut, seed):
    step = random_step(seed, B=B, T=T)
    o = objective(preset=preset, kl_weight=0.1, mismatch="sequence", off_policy_limit=0.1)
    whole = accumulated(step.tokens, o, step.denominator, [list(range(B))])
    for got, want in zip(accumulated(step.tokens, o, step.denominator, cut), whole, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_bnpo_depends_on_micro_batching():
    step = random_step(0, B=B, T=T)
    o = objective(preset="bnpo")
    over = step.denominator
    _, whole, _ = accumulated(step.tokens, o, over, [list(range(B))])
    halves = [list(range(B // 2)), list(range(B // 2, B))]
    _, halved, _ = accumulated(step.tokens, o, replace(over, microbatches=2), halves)
    assert (whole - halved).abs().max() > 1e-3
    tokens = [int(step.tokens.mask_BT[rows].sum()) for rows in halves]
    assert tokens[0] != tokens[1]
    first = step.tokens.mask_BT[halves[0]] & (whole[halves[0]] != 0)
    scale = halved[halves[0]][first] / whole[halves[0]][first]
    assert scale.tolist() == pytest.approx([sum(tokens) / (2 * tokens[0])] * len(scale))


def test_ranks_add_up_like_micro_batches():
    # Two ranks with different numbers of answers, each counting over both.
    step = random_step(3, B=B, T=T)
    over = Denominator(B, int(step.tokens.mask_BT.sum()), MAX_TOKENS)
    x = step.without("keep_BT").tokens
    o = objective(preset="dapo")
    ranks = [policy_loss(pick(x, rows), o, over)[0] for rows in ([0, 1, 2], [3, 4, 5, 6, 7])]
    assert sum(r.item() for r in ranks) == pytest.approx(policy_loss(x, o, over)[0].item())
