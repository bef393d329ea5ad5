import itertools

import pytest

from groupwise.evaluate import majority_is_right, pass_at_k


@pytest.mark.parametrize(("samples", "right", "k"), [(4, 1, 2), (6, 3, 2), (5, 0, 3), (5, 5, 1)])
def test_pass_at_k_is_the_share_of_draws_that_hold_a_right_answer(
    samples: int, right: int, k: int
) -> None:
    answers = [1] * right + [0] * (samples - right)
    draws = list(itertools.combinations(answers, k))
    assert pass_at_k(samples, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(
    ("answers", "right", "expected"),
    [
        (["4", "5", "5"], [1, 0, 0], False),
        (["4", "4", "5"], [1, 1, 0], True),
        (["4", "5"], [1, 0], True),
        ([None, None, "5"], [0, 0, 1], True),
        ([None, None], [0, 0], False),
        ([], [], False),
    ],
)
def test_majority_is_of_extracted_answers(
    answers: list[str | None], right: list[float], expected: bool
) -> None:
    assert majority_is_right(answers, right) is expected
