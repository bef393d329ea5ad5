"""Every token's share and push: they add up, and are what the formulas say."""

import math
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from groupwise.config import Config
from groupwise.explain.numbers import token_numbers
from groupwise.objective.objective import PRESETS
from groupwise.recipe import parse
from groupwise.training.recorder import Update
from groupwise.training.update import rollout_batch
from groupwise.types import Completion
from small_models import random_groups

VARIANTS = ("", "algorithm.kl_weight=0.3", "algorithm.mismatch=token",
            "algorithm.mask_truncated=true")  # fmt: skip


def update(*settings: str, moved: float = 0.3) -> tuple[Update, Config]:
    """Random groups, seen by a policy that has moved since it sampled them."""
    rng = random.Random(1)

    def near(values: tuple[float, ...], by: float) -> list[float]:
        return [value + rng.uniform(-by, by) for value in values]

    def known(c: Completion) -> Completion:
        return replace(c, old_logprobs=c.logprobs, ref_logprobs=tuple(near(c.logprobs, 0.4)))

    groups = [
        replace(group, completions=tuple(known(c) for c in group.completions))
        for group in random_groups(4, 5, seed=3)
    ]
    config = parse({"rollout": {"max_completion_tokens": 12}}, [s for s in settings if s])
    batch = rollout_batch(groups, config)
    lines = [
        near(batch.groups[group].completions[answer].logprobs, moved)
        for group, answer in batch.members
    ]
    logprobs_BT = torch.zeros(batch.mask_BT.shape)
    for line, values in enumerate(lines):
        logprobs_BT[line, : len(values)] = torch.tensor(values)
    return Update(batch, logprobs_BT, torch.full_like(logprobs_BT, 0.5), 0.0), config


def with_line(seen: Update, place: tuple[int, int], values: Tensor) -> Update:
    """The update with other log-probs for one answer."""
    logprobs_BT = seen.logprobs_BT.clone()
    logprobs_BT[seen.batch.members.index(place)] = values
    return replace(seen, logprobs_BT=logprobs_BT)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_shares_add_up_to_the_loss(preset: str, variant: str) -> None:
    seen, config = update(f"algorithm={preset}", variant)
    numbers = token_numbers(replace(seen, entropy_weight=0.1), config.algorithm)
    shares = sum(token.loss for tokens in numbers.answers.values() for token in tokens)
    assert numbers.loss == pytest.approx(shares - numbers.entropy_bonus, abs=1e-6)
    assert numbers.entropy_bonus == pytest.approx(0.1 * 0.5, abs=1e-6)
    by_answer = sum(numbers.share(place) for place in numbers.answers)
    assert by_answer == pytest.approx(shares, abs=1e-9)


@pytest.mark.parametrize("preset", [p for p in PRESETS if p not in ("cispo", "vespo")])
def test_a_push_is_the_slope_of_the_loss(preset: str) -> None:
    """Nudge one log-prob; the loss moves by push times nudge. (cispo and vespo hold a weight still
    that moves with the log-prob, so for them the two differ on purpose.)"""
    # gspo's own clip edges bend the loss nearby
    wide = ("algorithm.clip_low=0.2", "algorithm.clip_high=0.2") if preset == "gspo" else ()
    seen, config = update(f"algorithm={preset}", *wide, moved=0.05)
    before = token_numbers(seen, config.algorithm)
    place, at, nudge = (1, 2), 0, 1e-2
    line = seen.logprobs_BT[seen.batch.members.index(place)]
    results = []
    for sign in (1, -1):
        nudged = with_line(seen, place, line + sign * nudge * (torch.arange(len(line)) == at))
        results.append(token_numbers(nudged, config.algorithm).loss)
    slope = (results[0] - results[1]) / (2 * nudge)
    assert before.answers[place][at].push == pytest.approx(slope, rel=0.02, abs=2e-5)


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("grpo", lambda length, over: length * over.answers),
        ("dapo", lambda length, over: over.tokens),
        ("dr_grpo", lambda length, over: over.answers * 12),
    ],
)
def test_on_policy_a_push_is_minus_the_advantage_over_what_the_preset_divides_by(
    preset: str, expected
) -> None:
    seen, config = update(f"algorithm={preset}")
    assert seen.batch.old_logprobs_BT is not None
    seen = replace(seen, logprobs_BT=seen.batch.old_logprobs_BT)
    over = seen.batch.denominator
    numbers = token_numbers(seen, config.algorithm)
    for (g, a), tokens in numbers.answers.items():
        advantage = seen.batch.groups[g].advantages[a]
        assert isinstance(advantage, float)
        for token in tokens:
            assert token.ratio == pytest.approx(1) and not token.clipped
            wanted = -advantage / expected(len(tokens), over)
            assert token.push == pytest.approx(wanted, rel=1e-5, abs=1e-9)


def test_a_token_beyond_the_clip_range_is_marked_and_not_pushed() -> None:
    seen, config = update()
    batch = seen.batch
    place = next((g, a) for g, a in batch.members if batch.advantages_BT[g * 5 + a, 0] > 0)
    assert batch.old_logprobs_BT is not None
    seen = with_line(seen, place, batch.old_logprobs_BT[batch.members.index(place)] + 1.0)
    numbers = token_numbers(seen, config.algorithm)
    for token in numbers.answers[place]:
        assert token.clipped and token.push == 0 and token.ratio == pytest.approx(2.71828, rel=1e-4)
    assert 0 < numbers.clipped < 1


def test_masked_answers_count_for_nothing() -> None:
    seen, config = update("algorithm.mask_truncated=true")
    numbers = token_numbers(seen, config.algorithm)
    cut = [p for p in numbers.answers if seen.batch.groups[p[0]].completions[p[1]].truncated]
    assert cut
    for place in cut:
        assert all(t.loss == t.push == 0 and not t.counts for t in numbers.answers[place])


def test_groups_that_were_not_computed_add_exactly_nothing() -> None:
    seen, config = update()
    part = seen
    for place in ((2, answer) for answer in range(5)):
        part = with_line(part, place, torch.full_like(seen.logprobs_BT[0], math.nan))
    numbers = token_numbers(part, config.algorithm)
    assert {g for g, _ in numbers.answers} == {0, 1, 3} and numbers.share((2, 0)) == 0
    unknown = torch.full_like(seen.logprobs_BT, math.nan)
    assert token_numbers(replace(seen, logprobs_BT=unknown), config.algorithm).loss == 0
