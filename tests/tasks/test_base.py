"""A task from problems and a judge alone, and what is said of anything else."""

from typing import Any

import pytest

import groupwise
from groupwise.errors import GroupwiseError
from groupwise.tasks.base import Task, split_of
from groupwise.types import Problem

PROBLEMS = [Problem(f"{n}", f"2*{n}=", {"answer": str(2 * n)}) for n in range(200)]


def right(completion: str, answer: str) -> bool:
    return completion.strip() == answer


def test_a_name_problems_and_a_judge_are_enough() -> None:
    task = groupwise.Task("doubles", PROBLEMS, right)

    splits = {"train": task.train, "validation": task.validation, "test": task.test}
    for split, problems in splits.items():
        assert {split_of(str(problem.prompt)) for problem in problems} == {split}
    held_out = [*task.train, *task.validation, *task.test]
    assert sorted(held_out, key=lambda problem: int(problem.id)) == PROBLEMS
    assert task.formatted("4") and not task.formatted(" \n")
    assert task.extract(" 4\n") == "4"


def test_the_same_problems_are_held_out_when_more_are_added() -> None:
    few, all_of_them = Task("few", PROBLEMS[:50], right), Task("all", PROBLEMS, right)

    assert set(map(str, few.test)) <= set(map(str, all_of_them.test))


def test_splits_that_are_given_stay_as_they_are() -> None:
    whole = Task("doubles", PROBLEMS[:5], right, validation=PROBLEMS[5:7], test=[])
    assert (len(whole.train), list(whole.validation), whole.test) == (5, PROBLEMS[5:7], [])

    without_test = Task("doubles", PROBLEMS[:5], right, validation=PROBLEMS[5:7])
    assert list(without_test.validation) == PROBLEMS[5:7]
    assert len(without_test.train) + len(without_test.test) == 5 and without_test.test


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 3}, "name must be text, not 3"),
        ({"train": [{"prompt": "2*1="}]}, r"train\[0\] is a dict, but must be a problem such as"),
        ({"train": "2*1="}, "train must be a list of problems .* not a str"),
        ({"train": None}, "train must be a list of problems .* not None"),
        ({"test": [*PROBLEMS[:1], "2*1="]}, r"test\[1\] is a str"),
        ({"train": PROBLEMS[:2]}, "2 different prompts, too few to hold any out"),
        ({"correct": "2"}, "correct must be a function or None, not a str"),
        ({"formatted": None}, "formatted must be a function, not None"),
        ({"extract": 1}, "extract must be a function, not an int"),
        ({"solve": "2"}, "solve must be a function or None, not a str"),
    ],
)
def test_values_that_no_task_can_have_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GroupwiseError, match=message):
        Task(**{"name": "doubles", "train": PROBLEMS, "correct": right, **changes})
