"""What a reward model is fitted on, and that fitting learns what the examples say."""

import json
import math
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.errors import DataError
from groupwise.reward_models.examples import (
    Examples,
    Pair,
    Scored,
    hold_out,
    pairs_of,
    read_examples,
)
from groupwise.reward_models.fit import FitSettings, fit, measure, rate_at, scaled
from groupwise.reward_models.model import KINDS, Kind, new_reward_model
from groupwise.reward_models.predict import preferences, score_answers


def hash_of(item: Scored) -> int:
    return zlib.crc32(f"{item.problem}/{item.completion}".encode())


QUICK = FitSettings(epochs=6, batch_size=16, lr=3e-3)


def polite(count: int) -> Examples:
    """Answers that say please are right."""
    texts = [(f"{i} please", 1.0) for i in range(3)] + [(f"{i} now!", 0.0) for i in range(3)]
    return Examples(
        scored=tuple(
            Scored(f"How many, {n}?", text, score, f"p{n}")
            for n in range(count)
            for text, score in texts
        )
    )


def as_pairs(examples: Examples) -> Examples:
    return Examples(pairs=tuple(p for p in pairs_of(examples.scored) if p.target == 1.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", ["scored", "pairs"])
def test_every_kind_learns_from_scores_and_from_pairs(kind: Kind, data: str) -> None:
    examples = polite(14) if data == "scored" else as_pairs(polite(9))
    train, validation = hold_out(examples, 0.25)
    made = new_reward_model(kind, "tiny-encoder", tokenizer="tiny", max_tokens=48, seed=0)
    fitted = fit(made, train, validation, QUICK)
    assert fitted.best.validation.auc > 0.95
    assert fitted.epochs[-1].loss < fitted.epochs[0].loss
    question = "How many, 99?"
    if kind == "preference":
        (won,) = preferences(made, [question], ["7 please"], ["7 now!"])
        assert won > 0.7
    else:
        good, bad = score_answers(made, [question] * 2, ["7 please", "7 now!"])
        assert good > bad
    assert measure(made, validation).auc == fitted.best.validation.auc


def test_the_seed_decides_everything() -> None:
    train, validation = hold_out(polite(12), 0.25)
    settings = FitSettings(epochs=2, batch_size=8, lr=1e-3)

    def weights(seed: int) -> torch.Tensor:
        made = new_reward_model(
            "scalar", "tiny-encoder", tokenizer="tiny", max_tokens=48, seed=seed
        )
        fit(made, train, validation, settings)
        return torch.cat([p.detach().flatten() for p in made.model.parameters()])

    before = torch.get_rng_state()
    first = weights(0)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))
    assert torch.equal(before, torch.get_rng_state())  # a run that is going on is not disturbed


def test_fitting_stops_when_nothing_gets_better_and_keeps_the_best() -> None:
    whims = [replace(s, score=float(hash_of(s) % 2)) for s in polite(12).scored]
    train, validation = hold_out(Examples(scored=tuple(whims)), 0.25)  # nothing to learn in it
    made = new_reward_model("scalar", "tiny-encoder", tokenizer="tiny", max_tokens=48, seed=0)
    told: list[tuple[float, str]] = []
    settings = FitSettings(epochs=50, batch_size=16, lr=3e-3, patience=2)
    fitted = fit(made, train, validation, settings, lambda share, line: told.append((share, line)))
    assert fitted.best.epoch + 2 == len(fitted.epochs) < 40
    assert measure(made, validation) == fitted.best.validation
    assert told[-1][0] == 1.0 and "AUC" in told[-1][1]


def test_a_decoder_gets_a_head_too() -> None:
    train, validation = hold_out(polite(10), 0.3)
    made = new_reward_model("scalar", "tiny", tokenizer="tiny", max_tokens=48, seed=0)
    assert type(made.model).__name__ == "LlamaForSequenceClassification"
    fitted = fit(made, train, validation, FitSettings(epochs=2, batch_size=8, lr=1e-3))
    assert fitted.best.validation.auc > 0.9


def test_scores_of_any_range_become_targets() -> None:
    assert scaled([0.0, 1.0]) == [0.0, 1.0] and scaled([1.0, 1.0]) == [1.0, 1.0]
    assert scaled([-1.0, 0.0, 3.0]) == [0.0, 0.25, 1.0]
    assert scaled([0.2]) == [0.2]


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [rate_at(done, 100) for done in range(100)]
    assert rates[9] == 1.0 == max(rates) and rates[0] == 0.1
    assert rates[10:] == sorted(rates[10:], reverse=True) and 0 < rates[-1] < 0.02
    assert rate_at(0, 1) == 1.0


@given(st.integers(2, 60), st.sampled_from([0.1, 0.2, 0.5]))
def test_a_problem_is_never_in_both_halves(count: int, share: float) -> None:
    examples = polite(count)
    train, held = hold_out(examples, share)
    assert train.problems and held.problems and not train.problems & held.problems
    assert train.problems | held.problems == examples.problems
    if 1 < len(held.problems) < count - 1:  # small sets get one problem for each half
        more_train, more_held = hold_out(polite(count + 5), share)
        assert train.problems <= more_train.problems and held.problems <= more_held.problems


def test_pairs_are_of_one_problem_better_first_with_few_ties() -> None:
    answers = (
        Scored("q", "good", 1.0, "a"), Scored("q", "bad", 0.0, "a"),
        Scored("q", "worse", 0.0, "a"), Scored("r", "alone", 1.0, "b"),
    )  # fmt: skip
    found = set(pairs_of(answers))
    assert found == {
        Pair("q", "good", "bad", 1.0, "a"),
        Pair("q", "good", "worse", 1.0, "a"),
        Pair("q", "bad", "worse", 0.5, "a"),
    }
    assert pairs_of(answers[1:3]) == ()  # a problem with nothing but ties teaches nothing


def test_lines_are_read_as_scores_or_as_pairs(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    turns = [{"role": "user", "content": "2+2?"}]
    lines = [{"prompt": turns, "completion": "4", "score": True},
             {"prompt": "2+2?", "completion": "5", "score": 0.25, "problem": "p"}]  # fmt: skip
    file.write_text("\n".join(json.dumps(line) for line in lines))
    first, second = read_examples(str(file)).scored
    assert first.prompt == tuple(turns) and first.score == 1.0
    assert second == Scored("2+2?", "5", 0.25, "p")
    trl = {"prompt": "2+2?", "chosen": [{"role": "assistant", "content": "4"}], "rejected": "5"}
    file.write_text(json.dumps(trl))
    (pair,) = read_examples(str(file)).pairs
    assert (pair.first, pair.second, pair.target) == ("4", "5", 1.0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "q", "completion": "a"}, "score must be a finite number"),
        ({"prompt": "q", "completion": "a", "score": math.nan}, "score must be"),
        ({"prompt": "q", "completion": "a", "score": "high"}, "not 'high'"),
        ({"prompt": 3, "completion": "a", "score": 1}, "prompt must be text"),
        ({"prompt": [], "completion": "a", "score": 1}, "prompt must be text"),
        ({"prompt": "q", "completion": None, "score": 1}, "completion must be text"),
        ({"prompt": "q", "chosen": "a"}, "rejected must be text"),
    ],
)
def test_lines_that_cannot_be_read_are_named(tmp_path: Path, line: object, message: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps(line))
    with pytest.raises(DataError, match=message) as raised:
        read_examples(str(file))
    assert "line 1" in str(raised.value)


def test_data_that_teaches_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="about one problem"):
        hold_out(polite(1), 0.2)
    equal = Examples(scored=tuple(Scored("q", text, 1.0, "p") for text in "abc"))
    made = new_reward_model("preference", "tiny-encoder", tokenizer="tiny", max_tokens=48, seed=0)
    with pytest.raises(DataError, match="nothing to compare"):
        fit(made, equal, equal, QUICK)
    with pytest.raises(DataError, match="nothing to measure"):
        measure(made, equal)
