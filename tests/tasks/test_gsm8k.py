import json
from pathlib import Path

import datasets
import pytest

from groupwise.config.tasks import Gsm8kTask
from groupwise.errors import DataError
from groupwise.tasks import gsm8k
from groupwise.tasks.gsm8k_forms import FORMS


def write(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def rows(word: str, count: int) -> list[dict[str, object]]:
    return [
        {"question": f"{word} {i}?", "answer": f"{i} * 1,000 = {i},000\n#### {i},000"}
        for i in range(1, count + 1)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "data", "train.jsonl", rows("train", 10))
    write(tmp_path / "data", "test.jsonl", rows("test", 5))
    return tmp_path / "data"


def test_the_end_of_the_training_file_is_validation_and_ids_are_positions(folder: Path) -> None:
    task = gsm8k.build(Gsm8kTask(path=str(folder), validation_size=3))

    assert [p.id for p in task.train] == [f"gsm8k/train/{i}" for i in range(7)]
    assert [p.id for p in task.validation] == [f"gsm8k/train/{i}" for i in (7, 8, 9)]
    assert [p.id for p in task.test] == [f"gsm8k/test/{i}" for i in range(5)]


def test_sizes_limit_the_splits_without_moving_the_validation_problems(folder: Path) -> None:
    task = gsm8k.build(Gsm8kTask(path=str(folder), validation_size=3, train_size=2, test_size=1))

    assert [p.id for p in task.train] == ["gsm8k/train/0", "gsm8k/train/1"]
    assert [p.id for p in task.validation] == ["gsm8k/train/7"]
    assert [p.id for p in task.test] == ["gsm8k/test/0"]


def test_the_answer_is_the_final_number_and_the_solution_stays_whole(folder: Path) -> None:
    problem = gsm8k.build(Gsm8kTask(path=str(folder), validation_size=3)).train[1]

    assert problem.columns == {
        "question": "train 2?",
        "answer": "2000",
        "solution": "2 * 1,000 = 2,000\n#### 2,000",
    }
    assert problem.prompt == (
        {"role": "system", "content": FORMS["tags"].system},
        {"role": "user", "content": "train 2?"},
    )


def test_system_and_prefill_can_be_the_users_own_and_an_empty_system_is_none(folder: Path) -> None:
    settings = Gsm8kTask(path=str(folder), validation_size=3, system="Be brief.", prefill="<think>")
    own = gsm8k.build(settings).train[0]
    none = gsm8k.build(settings.model_copy(update={"system": ""})).train[0]

    assert own.prompt[0] == {"role": "system", "content": "Be brief."}
    assert own.prefill == "<think>"
    assert none.prompt == ({"role": "user", "content": "train 1?"},)


def test_the_judges_know_right_from_wrong_and_tagged_from_bare(folder: Path) -> None:
    task = gsm8k.build(Gsm8kTask(path=str(folder), validation_size=3))
    tagged = "<think>1 * 1000</think><answer>1,000</answer>"
    assert task.correct is not None

    assert task.correct(completion=tagged, answer="1000")
    assert not task.correct(completion=tagged, answer="1001")
    assert task.formatted(completion=tagged)
    assert not task.formatted(completion="It is 1000.")
    assert task.extract(tagged) == task.extract("<answer>1000</answer>") is not None


def test_the_hub_gives_the_same_problems_as_a_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load_dataset(path: str, name: str | None, revision: str | None) -> datasets.DatasetDict:
        asked.append((path, name, revision))
        splits = {"train": rows("train", 10), "test": rows("test", 5)}
        return datasets.DatasetDict({k: datasets.Dataset.from_list(v) for k, v in splits.items()})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)

    assert gsm8k.build(Gsm8kTask(validation_size=3)) == gsm8k.build(
        Gsm8kTask(path=str(folder), validation_size=3)
    )
    assert asked == [("openai/gsm8k", "main", None)]


def test_validation_may_not_eat_the_training_problems(folder: Path) -> None:
    with pytest.raises(DataError, match=r"has 10 problems.*validation_size=10.*below 10"):
        gsm8k.build(Gsm8kTask(path=str(folder), validation_size=10))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "answer": "just 5"}, r"train\.jsonl, line 1.*####"),
        ({"question": "q", "answer": "5 #### "}, r"train\.jsonl, line 1.*####"),
        ({"question": 5, "answer": "#### 5"}, r"line 1.*question and answer.*answer, question"),
        ({"prompt": "q"}, r"line 1.*this one has: prompt.*task\.kind=jsonl"),
    ],
)
def test_rows_of_another_form_are_refused_with_their_line(
    folder: Path, row: dict[str, object], message: str
) -> None:
    write(folder, "train.jsonl", [row])

    with pytest.raises(DataError, match=message):
        gsm8k.build(Gsm8kTask(path=str(folder)))


def test_a_missing_folder_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere.train\.jsonl does not exist"):
        gsm8k.build(Gsm8kTask(path=str(tmp_path / "nowhere")))


def test_worked_examples_come_from_the_start_and_are_not_trained_on(folder: Path) -> None:
    task = gsm8k.build(Gsm8kTask(path=str(folder), validation_size=3, few_shot=2))

    assert [p.id for p in task.train] == [f"gsm8k/train/{i}" for i in range(2, 7)]
    assert [turn["role"] for turn in task.test[0].prompt] == [  # type: ignore[index]
        *("system", "user", "assistant", "user", "assistant", "user")
    ]
    assert task.test[0].prompt[2] == {
        "role": "assistant",
        "content": "<think>1 * 1,000 = 1,000</think>\n<answer>1000</answer>",
    }
    assert task.formatted(task.test[0].prompt[2]["content"])  # type: ignore[index]


def test_hashes_are_asked_for_shown_and_judged(tmp_path: Path) -> None:
    marked: dict[str, object] = {"question": "q?", "answer": "2 * 9 = <<2*9=18>>18\n#### 18"}
    write(tmp_path / "data", "train.jsonl", [marked, *rows("train", 5)])
    write(tmp_path / "data", "test.jsonl", rows("test", 2))
    settings = Gsm8kTask(
        path=str(tmp_path / "data"), validation_size=2, few_shot=1, answer_format="hashes"
    )
    task = gsm8k.build(settings)
    system, _, example, _ = task.test[0].prompt

    assert system == {"role": "system", "content": FORMS["hashes"].system}
    assert example == {"role": "assistant", "content": "2 * 9 = 18\n#### 18"}
    assert task.formatted("2 * 9 = 18\n#### 18")
    for text in ("#### 18", "so 18", "a #### 18\nmore", "a\n#### 1\n#### 18", "a\n####", ""):
        assert not task.formatted(text), text
    assert task.correct is not None and task.correct("a\n#### 1,000", "1000")


def test_examples_and_validation_may_not_eat_the_training_problems(folder: Path) -> None:
    with pytest.raises(DataError, match=r"validation_size=8 and task\.few_shot=2 leave none"):
        gsm8k.build(Gsm8kTask(path=str(folder), validation_size=8, few_shot=2))
