"""Stand-ins for reward models: named, the same every time, with opinions, and never silent."""

import logging

import pytest

from groupwise.errors import ModelError
from groupwise.reward_models.model import STAND_INS, load_reward_model
from groupwise.reward_models.predict import score_answers
from groupwise.reward_models.reward import mean_wins_of


@pytest.mark.parametrize("name", STAND_INS)
def test_a_stand_in_is_of_its_kind_and_says_that_it_is_one(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="groupwise"):
        model = load_reward_model(name, "cpu")
    assert model.kind == STAND_INS[name] and not model.model.training
    assert "random weights" in caplog.text


def test_a_stand_in_tells_answers_apart_and_is_the_same_again() -> None:
    answers = ["<answer>5</answer>", "no idea", "7"]
    first, again = (
        list(score_answers(load_reward_model("tiny-scalar", "cpu"), ["2+3=?"] * 3, answers))
        for _ in range(2)
    )
    assert first == again and len({round(score, 3) for score in first}) == 3


def test_the_preferring_one_does_not_only_tie() -> None:
    answers = ["<think>3+4=7</think><answer>7</answer>", "<think></think><answer>9</answer>", "7"]
    wins = mean_wins_of(load_reward_model("tiny-preference", "cpu"), "What is 3+4?", answers, 16)
    assert max(wins) > 0.55 and min(wins) < 0.45 and sum(wins) == pytest.approx(1.5)


def test_its_limits_are_checked_like_any_other() -> None:
    with pytest.raises(ModelError, match="reads from 16 to 512"):
        load_reward_model("tiny-cot", "cpu", max_tokens=4)
