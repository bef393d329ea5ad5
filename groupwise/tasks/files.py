"""The rows of a public dataset: from a local folder of its own files, or from the hub.

Datasets are published as JSON Lines, as one JSON array, or with either under the name .json. A
folder without a training file is still useful: what it has for validation is then trained on, and
a new validation split is taken out of that.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from groupwise.errors import DataError, type_name
from groupwise.tasks.base import SPLITS, Split
from groupwise.tasks.hub import load_splits, split_rows
from groupwise.tasks.jsonl import Row, read_rows

log = logging.getLogger("groupwise")

STEMS: Mapping[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "dev", "valid"),
    "test": ("test",),
}
"""What datasets call the files of a split."""

MAX_BYTES = 2**31


def read_dataset(
    path: str | None, hub_id: str, hub_name: str | None = None, revision: str | None = None
) -> dict[Split, list[Row]]:
    """The splits that there are, by our names for them. There is always one to train on."""
    folder = Path(os.path.expanduser(path)) if path else None
    rows = _from_folder(folder) if folder else _from_hub(hub_id, hub_name, revision)
    if "train" not in rows:
        if "validation" not in rows:
            where = path or hub_id
            raise DataError(f"{where} has nothing to train on: neither train nor validation data")
        log.info("%s has no training data; its validation data is used for that", path or hub_id)
        rows["train"] = rows.pop("validation")
    return rows


def text_column(row: Row, dataset: str, *names: str) -> str:
    """The first of these columns that the row has, as text, or a DataError that shows the row's."""
    for name in names:
        value = row.columns.get(name)
        if isinstance(value, str) and value.strip():
            return value
    raise DataError(
        f"{row.location}: {dataset} rows have the text column {names[0]}, this one has: "
        f"{', '.join(sorted(row.columns)) or 'none'}. "
        "For columns of your own use task.kind=jsonl"
    )


def _from_folder(folder: Path) -> dict[Split, list[Row]]:
    if not folder.is_dir():
        raise DataError(f"task.path={folder} is not a folder; it must hold the dataset's own files")
    rows: dict[Split, list[Row]] = {}
    for split in SPLITS:
        names = [f"{stem}.{ending}" for stem in STEMS[split] for ending in ("jsonl", "json")]
        file = next((folder / name for name in names if (folder / name).is_file()), None)
        if file is not None:
            rows[split] = read_json(file)
    if not rows:
        there = ", ".join(sorted(entry.name for entry in folder.iterdir())[:20])
        raise DataError(
            f"{folder} has no train.jsonl, dev.jsonl or test.jsonl (or .json); "
            f"it holds: {there or 'nothing'}"
        )
    return rows


def read_file_folder_or_hub(path: str) -> dict[Split, list[Row]]:
    """Of one file of rows, a folder of splits (JSON, or what `datasets` reads), or a hub id."""
    local = Path(os.path.expanduser(path))
    if local.is_file():
        return {"train": read_json(local)}
    if local.is_dir() and any(local.glob("*.json*")):
        return _from_folder(local)
    if not local.exists() and (path.startswith((".", "~", "/")) or path.count("/") != 1):
        raise DataError(
            f"task.path={path}: there is no such file or folder, nor can it be a hub id"
        )
    return _from_hub(str(local) if local.exists() else path, None)


def _from_hub(
    hub_id: str, hub_name: str | None, revision: str | None = None
) -> dict[Split, list[Row]]:
    dataset = load_splits(hub_id, hub_name, revision)
    rows: dict[Split, list[Row]] = {}
    for split in SPLITS:
        theirs = next((name for name in STEMS[split] if name in dataset), None)
        if theirs is not None:
            rows[split] = split_rows(dataset, hub_id, theirs)
    return rows


def read_json(file: Path) -> list[Row]:
    """Rows of a file that is JSON Lines or one JSON array of objects."""
    with file.open("rb") as opened:
        is_array = opened.read(64).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    if not is_array:
        return read_rows(file)
    if file.stat().st_size > MAX_BYTES:
        raise DataError(f"{file} is one JSON array of over 2 GiB: convert it to JSON Lines")
    try:
        values = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: not valid JSON: {error}") from error
    return _objects(file, values)


def _objects(file: Path, values: Sequence[object]) -> list[Row]:
    rows = []
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict):
            raise DataError(f"{file}, item {number}: must be an object, not {type_name(value)}")
        rows.append(Row(f"{file.stem}/{number}", f"{file}, item {number}", value))
    if not rows:
        raise DataError(f"the dataset {file} is empty")
    return rows
