"""The user's own problems from JSON Lines, and what every dataset of the user's own shares.

A row is an object with a prompt column (plain text, or a conversation as TRL has it) and usually an
answer column; all other columns travel along to the rewards. The answer is also there as `answer`,
as text, whatever its column is called. A conversation that ends with an assistant's turn is
continued from there, as TRL does: that turn becomes the prefill.

Files that the user split are taken as they are; splits that are missing are taken out of train (see
`groupwise.tasks.base.fill_splits`).
"""

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groupwise.answers.final import canonical_answer, correct
from groupwise.answers.tags import not_blank, think_answer_format
from groupwise.config.tasks import JsonlTask
from groupwise.errors import DataError, type_name
from groupwise.tasks.base import SPLITS, Split, Task, dataset_task
from groupwise.types import Message, Problem


@dataclass(frozen=True)
class Row:
    """One row of a dataset: Row("train/17", "data/train.jsonl, line 17", {"prompt": "3+4="})"""

    id: str
    location: str
    """Its file and line, for error messages."""
    columns: Mapping[str, Any]


def build(settings: JsonlTask) -> Task:
    path = Path(os.path.expanduser(settings.path))
    files: dict[Split, Path] = {"train": path}
    if path.is_dir():
        files = {split: path / f"{split}.jsonl" for split in SPLITS}
        files = {split: file for split, file in files.items() if file.is_file()}
        if "train" not in files:
            there = ", ".join(sorted(file.name for file in path.iterdir())[:20])
            raise DataError(
                f"{path} has no train.jsonl; it holds: {there or 'nothing'}. Name the file itself, "
                "or a folder with train.jsonl (and, if you have them, validation.jsonl, test.jsonl)"
            )
    rows: dict[Split, list[Row]] = {split: read_rows(file) for split, file in files.items()}
    return task_of(path.stem, rows, settings)


def task_of(name: str, rows: Mapping[Split, Sequence[Row]], settings: JsonlTask) -> Task:
    """A task from the rows of the splits that there are; missing ones are taken from train."""
    problems: dict[Split, list[Problem]] = {
        split: [problem_of(row, settings) for row in rows[split]] for split in rows
    }
    asks_for_tags = any("<answer>" in text for p in problems["train"] for text in _texts(p))
    return dataset_task(
        name,
        problems,
        settings,
        seed=settings.seed,
        correct=None if settings.answer is None else correct,
        formatted=think_answer_format if asks_for_tags else not_blank,
        extract=canonical_answer,
    )


def _texts(problem: Problem) -> Iterator[str]:
    if isinstance(problem.prompt, str):
        yield problem.prompt
    else:
        yield from (turn["content"] for turn in problem.prompt)
    yield problem.prefill


def read_rows(path: Path) -> list[Row]:
    """The objects of a JSON Lines file; blank lines are skipped, anything else bad is refused."""
    try:
        if path.exists() and not path.is_file():  # a pipe would keep us waiting, a device for ever
            raise DataError(f"the dataset {path} is not a file; check task.path")
        with path.open("rb") as file:  # a file in /proc has no size and may have no end
            data = file.read(os.fstat(file.fileno()).st_size)
    except OSError as error:
        hint = f"cannot be read: {error.strerror}" if path.exists() else "does not exist"
        raise DataError(f"the dataset {path} {hint}; check task.path") from error
    rows = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            location = f"{path}, line {number}"
            rows.append(Row(f"{path.stem}/{number}", location, _parse_line(line, location)))
    if not rows:
        raise DataError(f"the dataset {path} is empty: it needs one JSON object on each line")
    return rows


def _parse_line(line: bytes, location: str) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        message = f"{location}: not valid UTF-8 ({error.reason}): save it as UTF-8"
        raise DataError(message) from error
    except (ValueError, RecursionError) as error:  # also numbers too long, and nesting too deep
        raise DataError(f"{location}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(
            f'{location}: must be an object such as {{"prompt": "..."}}, not {_kind(value)}'
        )
    return value


def problem_of(row: Row, settings: JsonlTask) -> Problem:
    """The problem in a row, or a DataError that names its location and the fix."""
    columns = {name: value for name, value in row.columns.items() if name != settings.prompt}
    if settings.answer is not None:
        fix = ", or task.answer=null if there is none"
        answer = _column(row, "answer", settings.answer, fix)
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise DataError(
                f"{row.location}: column {settings.answer!r} must be text or a number, "
                f"not {_kind(answer)}"
            )
        columns["answer"] = str(answer)
    turns = _turns(row, _column(row, "prompt", settings.prompt, ""), settings.prompt)
    if isinstance(turns, str) and settings.system is None:
        return Problem(row.id, turns, columns, settings.prefill)
    if isinstance(turns, str):
        turns = ({"role": "user", "content": turns},)
    if settings.system and turns[0]["role"] != "system":
        turns = ({"role": "system", "content": settings.system}, *turns)
    if turns[-1]["role"] != "assistant":
        return Problem(row.id, turns, columns, settings.prefill)
    return Problem(row.id, turns[:-1], columns, turns[-1]["content"] + settings.prefill)


def _column(row: Row, setting: str, name: str, fix: str) -> Any:
    if name in row.columns:
        return row.columns[name]
    near = difflib.get_close_matches(name, row.columns, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    there = ", ".join(sorted(row.columns)) or "none"
    raise DataError(
        f"{row.location}: no column {name!r}{hint}. Columns there: {there}. "
        f"Set task.{setting} (data_task(..., {setting}=...)) to the right one{fix}"
    )


def _turns(row: Row, value: Any, name: str) -> str | tuple[Message, ...]:
    """A prompt column's value, checked: text, or turns with a role and a content each."""
    where = f"{row.location}: column {name!r}"
    if isinstance(value, str):
        _check_text(value, where)
        return value
    if not isinstance(value, list) or not value:
        raise DataError(
            f"{where} must be text or a list of turns with role and content, not {_kind(value)}"
        )
    turns = []
    for turn in value:
        if not isinstance(turn, Mapping):
            raise DataError(f"{where} must hold turns with role and content, not {_kind(turn)}")
        # Arrow fills keys that only some turns have with None.
        turn = {key: text for key, text in turn.items() if text is not None}
        wrong = [key for key, text in turn.items() if not isinstance(text, str)]
        wrong += [key for key in ("role", "content") if key not in turn]
        if wrong:
            raise DataError(
                f"{where} has a turn without text in {wrong[0]!r}: "
                'each must look like {"role": "user", "content": "..."}'
            )
        turns.append(turn)
    if all(turn["role"] in ("system", "assistant") for turn in turns):
        raise DataError(f"{where} asks nothing: it needs a turn of role 'user'")
    _check_text("\n".join(turn["content"] for turn in turns), where)
    return tuple(turns)


def _check_text(text: str, where: str) -> None:
    if not text.strip():
        raise DataError(f"{where} is blank: every row needs a prompt")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where} has half a surrogate pair, which is no character") from error


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number"}
    if value is None or value == []:
        return "null" if value is None else "an empty list"
    return names.get(type(value), type_name(value))
