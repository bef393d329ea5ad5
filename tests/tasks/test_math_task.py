"""MATH: LaTeX answers in boxes, from JSON Lines or from the dataset's own folders."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from groupwise.answers.final import boxed_format
from groupwise.config.tasks import MathTask
from groupwise.errors import DataError
from groupwise.tasks import math

SOLUTIONS = [
    ("What is half of one?", r"It is $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
    ("Which point?", r"We get $\boxed{\left( 3, \frac{\pi}{2} \right)}.$", None),
    ("The largest root?", r"our answer is $\boxed 2$.", "2"),
    ("Which interval?", r"Thus $x \in \boxed{[-2,7]}$", "[-2,7]"),
    ("A root?", r"First \boxed{1}, then $\boxed{3\sqrt{13}}$", r"3\sqrt{13}"),
]


def rows(count: int) -> list[dict[str, str]]:
    found = []
    for index in range(count):
        question, solution, _ = SOLUTIONS[index % len(SOLUTIONS)]
        found.append(
            {
                "problem": f"{question} ({index})",
                "solution": solution,
                "level": "Level 5",
                "type": "Algebra",
            }
        )
    return found


def test_math_is_read_from_json_lines_and_validation_is_split_off(tmp_path: Path) -> None:
    for name, count in {"train": 50, "test": 5}.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows(count))))
    task = math.build(MathTask(path=str(tmp_path)))
    assert len(task.train) + len(task.validation) == 50 and task.validation
    assert [p.columns["answer"] for p in task.test] == [
        final or r"\left( 3, \frac{\pi}{2} \right)" for _, _, final in SOLUTIONS
    ]
    assert task.test[0].columns["level"] == "Level 5"
    assert "\\boxed{}" in task.test[0].prompt[0]["content"]  # type: ignore[index]
    assert task.correct is not None
    for problem in [*task.train, *task.validation, *task.test]:
        assert task.correct(problem.columns["solution"], problem.columns["answer"])
        assert not task.correct(r"so \boxed{-77}", problem.columns["answer"])


def test_math_comes_from_the_hub_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*arguments: Any, **named: Any) -> datasets.DatasetDict:
        asked.append((arguments, named))
        splits = {name: rows(20) for name in ("train", "test")}
        return datasets.DatasetDict({k: datasets.Dataset.from_list(v) for k, v in splits.items()})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(math.build(MathTask()).test) == 20
    assert asked == [(("DigitalLearningGmbH/MATH-lighteval", "default"), {"revision": None})]


def test_math_is_read_from_its_own_folders(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for index, row in enumerate(rows(12)):
            folder = tmp_path / split / ("algebra" if index % 2 else "geometry")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{index}.json").write_text(json.dumps(row))
    task = math.build(MathTask(path=str(tmp_path), system=""))
    assert len(task.train) + len(task.validation) == 12 and len(task.test) == 12
    assert len(task.test[0].prompt) == 1


def test_equal_answers_count_and_others_do_not() -> None:
    assert math.correct(r"\boxed{0.5}", r"\frac{1}{2}")
    assert math.correct(r"\boxed{\dfrac12}", r"\frac{1}{2}")
    assert math.correct(r"\boxed{\sqrt{117}}", r"3\sqrt{13}")
    assert not math.correct(r"\boxed{[2,7]}", "[-2,7]")


def test_the_form_is_one_filled_box() -> None:
    assert boxed_format(r"so $\boxed{5}$")
    for text in ("so 5", r"\boxed{}", r"\boxed{1} \boxed{2}", r"\boxed{1", ""):
        assert not boxed_format(text)


def test_problems_without_an_answer_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    empty = {"problem": "q", "solution": r"it is $\boxed{}$"}
    lines = [empty, *rows(20)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    task = math.build(MathTask(path=str(tmp_path)))
    assert len(task.train) + len(task.validation) + len(task.test) == 20
    assert "1 train problems have no answer" in caplog.text
    (tmp_path / "train.jsonl").write_text(json.dumps(empty))
    with pytest.raises(DataError, match=r"line 1: no solution of this file has an answer"):
        math.build(MathTask(path=str(tmp_path)))


def test_folders_of_another_form_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="no subject folders"):
        math.build(MathTask(path=str(tmp_path)))
