"""A dataset of the Hugging Face hub, or a local folder that `datasets` can read.

Rows are read as in tasks/jsonl.py. Columns that JSON cannot hold (images, audio, dates) are left
out, since problems are stored with the answers to them.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from groupwise.config.tasks import HubTask
from groupwise.errors import DataError
from groupwise.hub import hub_or_cache
from groupwise.tasks.base import Split, Task
from groupwise.tasks.jsonl import Row, task_of

MOST_FILES = 20_000
"""In a local folder. `datasets` lists all that lies below it: of `/` that takes an hour."""


def build(settings: HubTask) -> Task:
    dataset = load_splits(settings.path, settings.name)
    wanted: dict[Split, str] = {"train": settings.train_split}
    if settings.test_split is not None:
        wanted["test"] = settings.test_split
    rows: dict[Split, list[Row]] = {
        ours: split_rows(dataset, settings.path, theirs) for ours, theirs in wanted.items()
    }
    return task_of(settings.path.rstrip("/").rsplit("/", 1)[-1], rows, settings)


def load_splits(
    path: str, name: str | None, revision: str | None = None
) -> Mapping[str, Iterable[Mapping[str, Any]]]:
    """All splits of a dataset, by name, or a DataError with the way out."""
    import datasets  # half a second and much memory, for this kind of task alone

    count = 0
    for _, _, files in os.walk(path):
        count += len(files)
        if count > MOST_FILES:
            raise DataError(
                f"{path} holds more than {MOST_FILES} files: set task.path to the folder with the "
                "data alone"
            )
    try:
        with nullcontext() if Path(path).exists() else hub_or_cache():
            return datasets.load_dataset(path, name, revision=revision)  # pyright: ignore[reportReturnType]
    # Without network, with a wrong name or with a broken file, this raises anything from
    # ConnectionError to errors of four other libraries. None of them is a bug of ours.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"cannot load the dataset {path!r}{f' ({name})' if name else ''}: {reason}\n"
            "Check the name. Where the hub is out of reach, get the data elsewhere, put it "
            "into a local folder as JSON Lines (train.jsonl, test.jsonl) and set task.path to that"
        ) from error


def split_rows(
    dataset: Mapping[str, Iterable[Mapping[str, Any]]], path: str, split: str
) -> list[Row]:
    if split not in dataset:
        raise DataError(
            f"the dataset {path!r} has no split {split!r}; it has: {', '.join(dataset)}. "
            "Set task.train_split and task.test_split"
        )
    rows = [
        Row(f"{split}/{index}", f"{path}, split {split}, row {index}", _storable(columns))
        for index, columns in enumerate(dataset[split])
    ]
    if not rows:
        raise DataError(f"the dataset {path!r} is empty: split {split!r} has no rows")
    return rows


def _storable(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float | bool)
