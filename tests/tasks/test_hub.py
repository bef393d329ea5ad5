import datetime
import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from groupwise.config.tasks import HubTask
from groupwise.errors import DataError
from groupwise.tasks import hub
from groupwise.tasks.base import split_of


def sums(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{i}+1=", "answer": i + 1, "level": i % 3} for i in range(count)]


def serve(monkeypatch: pytest.MonkeyPatch, **splits: list[dict[str, Any]]) -> list[Any]:
    """Make load_dataset give these splits; the list fills with what it is asked for."""
    asked = []

    def load_dataset(*arguments: Any, revision: str | None) -> datasets.DatasetDict:
        asked.append(arguments)
        return datasets.DatasetDict({k: datasets.Dataset.from_list(v) for k, v in splits.items()})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def test_rows_become_problems_split_by_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = serve(monkeypatch, train=sums(100))
    task = hub.build(HubTask(path="someone/sums", name="easy"))

    assert asked == [("someone/sums", "easy")]
    assert task.name == "sums"
    assert {split_of(str(p.prompt)) for p in task.test} == {"test"}
    assert len(task.train) + len(task.validation) + len(task.test) == 100
    first = task.train[0]
    assert first.columns["answer"] == str(int(str(first.prompt).split("+")[0]) + 1)
    assert first.columns["level"] in (0, 1, 2)
    assert first.id.startswith("train/")


def test_the_splits_may_have_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, learn=sums(50), hidden=[{"prompt": "9*9=", "answer": 81}])
    task = hub.build(HubTask(path="a/b", train_split="learn", test_split="hidden"))

    assert [(p.id, p.prompt) for p in task.test] == [("hidden/0", "9*9=")]
    assert len(task.train) + len(task.validation) == 50
    with pytest.raises(DataError, match=r"no split 'train'; it has: learn, hidden"):
        hub.build(HubTask(path="a/b"))


def test_conversations_keep_only_what_their_turns_have(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [
        {"role": "system", "content": "Be kind.", "name": None},
        {"role": "user", "content": "hi", "name": "me"},
    ]
    rows = [
        {"prompt": [*turns, {"role": "user", "content": str(i), "name": None}]} for i in range(9)
    ]
    serve(monkeypatch, train=rows)

    problem = hub.build(HubTask(path="a/b", answer=None)).train[0]

    assert problem.prompt[:2] == ({"role": "system", "content": "Be kind."}, turns[1])


def test_columns_that_json_cannot_hold_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{**row, "when": datetime.datetime(2020, 1, 1), "raw": b"\0"} for row in sums(20)]
    serve(monkeypatch, train=rows)

    problem = hub.build(HubTask(path="a/b")).train[0]

    assert set(problem.columns) == {"answer", "level"}
    json.dumps(problem.columns)


def test_missing_columns_and_empty_splits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, train=sums(20))
    with pytest.raises(DataError, match=r"row 0: no column 'promt' \(did you mean 'prompt'"):
        hub.build(HubTask(path="a/b", prompt="promt"))
    serve(monkeypatch, train=[])
    with pytest.raises(DataError, match=r"'a/b' is empty: split 'train' has no rows"):
        hub.build(HubTask(path="a/b"))


def test_no_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'a/b' on the Hub\nand a long story")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)

    with pytest.raises(DataError, match=r"Couldn't reach 'a/b' on the Hub\n.*local folder") as info:
        hub.build(HubTask(path="a/b"))
    assert "long story" not in str(info.value)


def test_a_local_folder_that_datasets_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "sums"
    folder.mkdir()
    for split, count in (("train", 40), ("test", 7)):
        lines = [json.dumps(row) for row in sums(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))

    task = hub.build(HubTask(path=str(folder), test_split="test"))

    assert [p.prompt for p in task.test] == [f"{i}+1=" for i in range(7)]
    assert len(task.train) + len(task.validation) == 40
    assert task.name == "sums"


def test_a_missing_dataset_is_refused_without_a_traceback_of_another_library() -> None:
    with pytest.raises(DataError, match=r"cannot load the dataset 'no/where'.*"):
        hub.build(HubTask(path="no/where"))


def test_a_loading_script_in_a_dataset_folder_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    )
    with pytest.raises(DataError, match="cannot load the dataset"):
        hub.load_splits(str(folder), None)
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_everything_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.csv").write_text("prompt,answer\n1,2\n")
    with pytest.raises(DataError, match="holds more than 3 files: set task"):
        hub.build(HubTask(path=str(tmp_path)))
