"""A task from data in memory: a `datasets.Dataset`, a list of dicts, or one of these by split.

Rows are read as in tasks/jsonl.py: a prompt column (text, or a conversation as TRL has it), usually
an answer column, and whatever else rewards ask for.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from groupwise.config.tasks import JsonlTask
from groupwise.errors import DataError, type_name
from groupwise.tasks.base import SPLITS, Split, Task
from groupwise.tasks.hub import split_rows
from groupwise.tasks.jsonl import Row, task_of

Rows = Iterable[Mapping[str, Any]]
EXAMPLE = '[{"prompt": "3+4=", "answer": "7"}, ...]'


def data_task(
    data: Rows | Mapping[str, Rows],
    name: str = "data",
    *,
    prompt: str = "prompt",
    answer: str | None = "answer",
    system: str | None = None,
    prefill: str = "",
) -> Task:
    """A task from rows: data_task(rows), data_task(dataset, prompt="question", system="Be brief.")

    `data` may hold a list for each split: {"train": ..., "test": ...}; splits that are missing are
    taken out of train. `answer` names the column with the right answer; where no row has it, there
    is nobody to judge, and rewards alone decide.
    """
    splits = _splits(data)
    checked: dict[str, list[Mapping[str, Any]]] = {}
    for split, rows in splits.items():
        checked[split] = [_checked_row(row, split, i) for i, row in enumerate(rows)]
    listed: dict[Split, list[Row]] = {
        split: split_rows(checked, name, split) for split in SPLITS if split in checked
    }
    judged = answer if any(answer in row.columns for row in listed["train"]) else None
    settings = JsonlTask(path=name, prompt=prompt, answer=judged, system=system, prefill=prefill)
    return task_of(name, listed, settings)


def _splits(data: Any) -> dict[str, Rows]:
    if isinstance(data, Mapping):
        unknown = [key for key in data if key not in SPLITS]
        if unknown or "train" not in data:
            raise DataError(
                f"data by split has train, and validation and test if you like; not "
                f"{', '.join(map(repr, unknown or data)) or 'nothing'}"
            )
        return {str(split): rows for split, rows in data.items()}
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise DataError(
            f"data must be a datasets.Dataset or a list of dicts such as {EXAMPLE}, "
            f"not {type_name(data)}"
        )
    return {"train": data}


def _checked_row(row: Any, split: str, index: int) -> Mapping[str, Any]:
    if isinstance(row, Mapping):
        return row
    raise DataError(
        f"data: {split}[{index}] is {type_name(row)}, but must be a dict such as "
        f"{EXAMPLE.removeprefix('[').partition('}')[0]}}}"
    )
