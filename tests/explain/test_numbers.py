"""Every token's share and push: they add up, and are what the formulas say."""

import random
from dataclasses import replace

import pytest

from groupwise.config import Config
from groupwise.explain.numbers import Moment, token_numbers
from groupwise.objective.presets import PRESETS
from groupwise.recipe import parse
from groupwise.training.step import Scored, step_denominator
from groupwise.types import Completion, Group
from small_models import random_groups

VARIANTS = ("", "algorithm.kl_weight=0.3", "algorithm.mismatch=token",
            "algorithm.mask_truncated=true")  # fmt: skip


def moment(*settings: str, moved: float = 0.3) -> tuple[Moment, Config]:
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
    return Moment(groups, scored(groups, lambda c: near(c.logprobs, moved))), config


def scored(groups: list[Group], logprobs) -> Scored:
    return {
        (g, a): (logprobs(c), [0.5] * len(c.tokens))
        for g, group in enumerate(groups)
        for a, c in enumerate(group.completions)
    }


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("preset", PRESETS)
def test_shares_add_up_to_the_loss(preset: str, variant: str) -> None:
    seen, config = moment(f"algorithm={preset}", variant)
    over = step_denominator(seen.groups, config, None)
    numbers = token_numbers(replace(seen, entropy_weight=0.1), config.algorithm, over)
    shares = sum(token.loss for tokens in numbers.answers.values() for token in tokens)
    assert numbers.loss == pytest.approx(shares - numbers.entropy_bonus, abs=1e-6)
    assert numbers.entropy_bonus == pytest.approx(0.1 * 0.5, abs=1e-6)
    by_answer = sum(numbers.share(place) for place in numbers.answers)
    assert by_answer == pytest.approx(shares, abs=1e-9)


@pytest.mark.parametrize("preset", [p for p in PRESETS if p not in ("cispo", "vespo")])
def test_a_push_is_the_slope_of_the_loss(preset: str) -> None:
    """Nudge one log-prob; the loss moves by push times nudge. (cispo and vespo hold a weight still
    that moves with the log-prob, so for them the two differ on purpose.)"""
    wide = ("algorithm.clip_low=0.2", "algorithm.clip_high=0.2")  # gspo's own bends the loss nearby
    seen, config = moment(f"algorithm={preset}", *wide, moved=0.05)
    over = step_denominator(seen.groups, config, None)
    before = token_numbers(seen, config.algorithm, over)
    place, at, nudge = (1, 2), 0, 1e-2
    logprobs, entropies = seen.scored[place]
    results = []
    for sign in (1, -1):
        moved = [logprobs[at] + sign * nudge if t == at else v for t, v in enumerate(logprobs)]
        nudged = replace(seen, scored={**seen.scored, place: (moved, entropies)})
        results.append(token_numbers(nudged, config.algorithm, over).loss)
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
    seen, config = moment(f"algorithm={preset}")
    seen = replace(seen, scored=scored(list(seen.groups), lambda c: list(c.logprobs)))
    over = step_denominator(seen.groups, config, None)
    numbers = token_numbers(seen, config.algorithm, over)
    for (g, a), tokens in numbers.answers.items():
        advantage = seen.groups[g].advantages[a]
        assert isinstance(advantage, float)
        for token in tokens:
            assert token.ratio == pytest.approx(1) and not token.clipped
            wanted = -advantage / expected(len(tokens), over)
            assert token.push == pytest.approx(wanted, rel=1e-5, abs=1e-9)


def test_a_token_beyond_the_clip_range_is_marked_and_not_pushed() -> None:
    seen, config = moment()
    better = [(g, a) for g, a in seen.scored if seen.groups[g].advantages[a] > 0]  # type: ignore
    place = better[0]
    completion = seen.groups[place[0]].completions[place[1]]
    far = ([logprob + 1.0 for logprob in completion.logprobs], [0.5] * len(completion.tokens))
    seen = replace(seen, scored={**seen.scored, place: far})
    over = step_denominator(seen.groups, config, None)
    numbers = token_numbers(seen, config.algorithm, over)
    for token in numbers.answers[place]:
        assert token.clipped and token.push == 0 and token.ratio == pytest.approx(2.71828, rel=1e-4)
    assert 0 < numbers.clipped < 1


def test_masked_answers_count_for_nothing() -> None:
    seen, config = moment("algorithm.mask_truncated=true")
    over = step_denominator(seen.groups, config, None)
    numbers = token_numbers(seen, config.algorithm, over)
    cut = [p for p in numbers.answers if seen.groups[p[0]].completions[p[1]].truncated]
    assert cut
    for place in cut:
        assert all(t.loss == t.push == 0 and not t.counts for t in numbers.answers[place])


def test_groups_that_were_not_computed_add_exactly_nothing() -> None:
    seen, config = moment()
    part = replace(seen, scored={p: v for p, v in seen.scored.items() if p[0] != 2})
    over = step_denominator(seen.groups, config, None)
    numbers = token_numbers(part, config.algorithm, over)
    assert {g for g, _ in numbers.answers} == {0, 1, 3} and numbers.share((2, 0)) == 0
    assert token_numbers(replace(seen, scored={}), config.algorithm, over).loss == 0
