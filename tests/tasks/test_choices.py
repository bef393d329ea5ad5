"""Multiple choice: AQuA-RAT and MathQA in their own files, and which option a text chooses."""

import json
import logging
from pathlib import Path
from typing import Any

import datasets
import pytest

from groupwise.answers.choices import chosen, correct, extract
from groupwise.answers.tags import think_answer_format
from groupwise.config.tasks import AquaRatTask, MathQaTask
from groupwise.errors import DataError
from groupwise.tasks import choices
from groupwise.tasks.choices import joined_options

OPTIONS = ["10", "1/2", "25 %", "x + 1", "None of these"]


def aqua_rows(word: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "question": f"{word} {i}: what is {i} + {i}?",
            "options": [f"A){i}", f"B) {2 * i}", f"C){3 * i}", "D)5(√3 + 1)", "E)None of these"],
            "rationale": f"{i} + {i} = {2 * i}\nAnswer : B",
            "correct": "B",
        }
        for i in range(1, count + 1)
    ]


def mathqa_rows(word: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "Problem": f"{word} {i} : what is {i} + {i} ?",
            "Rationale": "add . answer : b",
            "options": f"a ) {i} , b ) {2 * i} , c ) 1 , 600 , d ) rs . 5 , e ) none of these",
            "correct": "b",
            "annotated_formula": "add(n0,n0)",
            "category": "general",
        }
        for i in range(1, count + 1)
    ]


def write(folder: Path, name: str, rows: list[dict[str, Any]], array: bool = False) -> None:
    lines = json.dumps(rows) if array else "\n".join(map(json.dumps, rows))
    (folder / name).write_text(lines, encoding="utf-8")


def test_aqua_is_read_from_its_own_files(tmp_path: Path) -> None:
    for name, count in {"train.json": 6, "dev.json": 3, "test.json": 4}.items():
        write(tmp_path, name, aqua_rows(name, count))
    task = choices.build(AquaRatTask(path=str(tmp_path), train_size=5, test_size=2))
    assert [len(s) for s in (task.train, task.validation, task.test)] == [5, 2, 2]
    problem = task.test[1]
    assert problem.id == "aqua_rat/test/1"
    assert problem.columns == {
        "question": "test.json 2: what is 2 + 2?",
        "options": ["2", "4", "6", "5(√3 + 1)", "None of these"],
        "answer": "B",
        "solution": "2 + 2 = 4\nAnswer : B",
    }
    assert problem.prompt[-1] == {
        "role": "user",
        "content": "test.json 2: what is 2 + 2?\n\n"
        "A) 2\nB) 4\nC) 6\nD) 5(√3 + 1)\nE) None of these",
    }
    assert "letter" in problem.prompt[0]["content"]  # type: ignore[index]
    assert task.correct is not None
    assert task.correct("<think>2+2</think><answer>B</answer>", "B", problem.columns["options"])


def test_without_training_data_the_development_set_is_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "dev.json", aqua_rows("dev", 40))
    write(tmp_path, "test.json", aqua_rows("test", 4))
    with caplog.at_level(logging.INFO, logger="groupwise"):
        task = choices.build(AquaRatTask(path=str(tmp_path), system="", prefill="<think>"))
    assert "has no training data" in caplog.text
    assert len(task.train) + len(task.validation) == 40 and task.validation
    assert not {p.id for p in task.train} & {p.id for p in task.validation}
    assert len(task.test) == 4 and len(task.test[0].prompt) == 1
    assert task.test[0].prefill == "<think>"


def test_the_hub_gives_the_same_problems_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"train": aqua_rows("a", 6), "validation": aqua_rows("b", 2), "test": aqua_rows("c", 2)}
    write(tmp_path, "train.jsonl", rows["train"])
    write(tmp_path, "dev.json", rows["validation"], array=True)
    write(tmp_path, "test.json", rows["test"])
    asked = []

    def load_dataset(path: str, name: str | None, revision: str | None) -> datasets.DatasetDict:
        asked.append((path, name, revision))
        return datasets.DatasetDict({k: datasets.Dataset.from_list(v) for k, v in rows.items()})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert choices.build(AquaRatTask()) == choices.build(AquaRatTask(path=str(tmp_path)))
    assert asked == [("deepmind/aqua_rat", "raw", None)]


@pytest.mark.parametrize("array", [True, False])
def test_mathqa_is_read_from_arrays_and_lines(tmp_path: Path, array: bool) -> None:
    for name, count in {"train.json": 6, "dev.json": 3, "test.json": 4}.items():
        write(tmp_path, name, mathqa_rows(name, count), array=array)
    task = choices.build(MathQaTask(path=str(tmp_path)))
    assert [len(s) for s in (task.train, task.validation, task.test)] == [6, 3, 4]
    assert task.train[2].columns["options"] == ["3", "6", "1 , 600", "rs . 5", "none of these"]
    assert task.train[2].columns["answer"] == "B"
    assert task.train[2].id == "mathqa/train/2"


def test_mathqa_comes_from_the_hubs_parquet_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(*arguments: Any, **named: Any) -> datasets.DatasetDict:
        asked.append((arguments, named))
        splits = {name: mathqa_rows(name, 3) for name in ("train", "validation", "test")}
        return datasets.DatasetDict({k: datasets.Dataset.from_list(v) for k, v in splits.items()})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(choices.build(MathQaTask()).train) == 3
    assert asked == [(("allenai/math_qa", None), {"revision": "refs/convert/parquet"})]


def test_mathqa_options_are_split_at_their_letters() -> None:
    assert joined_options("a ) 12 , b ) 1 , 600 , c ) [ 1 , 2 ]") == [
        "12",
        "1 , 600",
        "[ 1 , 2 ]",
    ]
    assert joined_options("['a ) 10', 'b ) 12.5']") == ["10", "12.5"]
    assert joined_options("b ) 10 , a ) 5") == joined_options("10") == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"correct": "F"}, r"train\.json, line 1.*not \['A\)1'.*and 'F'"),
        ({"options": "A)1"}, r"line 1: AQuA-RAT rows have options such as"),
        ({"question": ""}, r"line 1: AQuA-RAT rows have the text column question"),
    ],
)
def test_rows_of_another_form_are_refused(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    write(tmp_path, "train.json", [{**aqua_rows("x", 1)[0], **row}])
    with pytest.raises(DataError, match=message):
        choices.build(AquaRatTask(path=str(tmp_path)))


def test_folders_without_the_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        choices.build(AquaRatTask(path=str(tmp_path / "none")))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"no train\.jsonl.*it holds: notes\.txt"):
        choices.build(MathQaTask(path=str(tmp_path)))
    write(tmp_path, "test.json", mathqa_rows("x", 2))
    with pytest.raises(DataError, match="nothing to train on"):
        choices.build(MathQaTask(path=str(tmp_path)))
    (tmp_path / "train.json").write_text("[1, 2]")
    with pytest.raises(DataError, match=r"train\.json, item 1: must be an object, not an int"):
        choices.build(MathQaTask(path=str(tmp_path)))
    (tmp_path / "train.json").write_text("[{]")
    with pytest.raises(DataError, match="not valid JSON"):
        choices.build(MathQaTask(path=str(tmp_path)))


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("<think>hm</think><answer>B</answer>", "B"),
        ("<think>so A</think><answer>(b)</answer>", "B"),
        ("<answer>B) 1/2</answer>", "B"),
        ("<answer>0.5</answer>", "B"),
        ("<answer>25%</answer>", "C"),
        ("<answer>Option C</answer>", "C"),
        ("<answer>none of these</answer>", "E"),
        ("<answer>A or B</answer>", None),
        ("<answer>A B C D E</answer>", None),
        ("<answer>B</answer><answer>C</answer>", None),
        ("<answer>F</answer>", None),
        ("<answer></answer> B", None),
        ("so it is \\boxed{C}", "C"),
        ("so it is \\boxed{10}", "A"),
        ("the value is 10\nAnswer : A", "A"),
        ("CORRECT OPTION:OPTION E", "E"),
        ("Correct answer - A", "A"),
        ("ANSWER:B", "B"),
        ("Answer is D", "D"),
        ("Answer E.", "E"),
        ("Hence answer will be (B)", "B"),
        ("D is the correct choice", "D"),
        ("there were 36 analysts.\nC", "C"),
        ("First I thought the answer is A, but the answer is B.", "B"),
        ("answer : a", "A"),
        ("The answer is a number.", None),
        ("The answer is 10.", "A"),
        ("It costs 77 in total", None),
        ("", None),
    ],
)
def test_the_chosen_option(text: str, letter: str | None) -> None:
    assert chosen(text, OPTIONS) == letter
    assert letter is None or correct(text, letter, OPTIONS)


def test_votes_are_letters_and_the_form_is_tags() -> None:
    assert extract("<answer> b) </answer>") == extract("Answer: B") == "B"
    assert extract("no idea") is None
    assert think_answer_format("<think>x</think><answer>B</answer>")
    assert not think_answer_format("Answer: B")


def test_huge_texts_cost_little() -> None:
    import time

    start = time.process_time()
    for piece in ("answer ", "answer is ", "option\n", "A ", "<answer>", "A) ", "\nA"):
        chosen(piece * (200_000 // len(piece)), OPTIONS)
        chosen(f"<answer>{piece * 30_000}</answer>", OPTIONS)
    assert time.process_time() - start < 5
