"""A JSON Lines file that somebody else is writing: each complete line is read once.

A last line without its newline is half-written: it is left for the next read. A file that was
replaced or cut (a run that went back to a checkpoint) is read again from its start.
"""

import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import orjson

from groupwise.view.stored_file import open_stored

LONGEST_LINE = 4_000_000
END = 64_000


@dataclass(frozen=True)
class NewRows:
    """What came since the last read; `restarted` says that earlier rows no longer hold."""

    rows: list[dict[str, Any]]
    restarted: bool


@dataclass
class JsonLinesTail:
    path: pathlib.Path
    broken: int = 0
    """Complete lines that are no JSON object; they are left out."""
    _offset: int = field(default=0, repr=False)
    _identity: tuple[int, int] | None = field(default=None, repr=False)

    @property
    def generation(self) -> str:
        return str(self._identity[1]) if self._identity else ""

    def read(self) -> NewRows:
        try:
            file = open_stored(self.path)
        except FileNotFoundError:
            gone, self._identity = self._identity is not None, None
            self._offset = self.broken = 0
            return NewRows([], gone)
        with file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            known = self._identity is not None
            restarted = known and (identity != self._identity or status.st_size < self._offset)
            if restarted:
                self._offset = self.broken = 0
            self._identity = identity
            file.seek(self._offset)
            lines = list(self._complete_lines(file))
        rows = parse_objects(lines)
        self.broken += len(lines) - len(rows)
        return NewRows(rows, restarted)

    def _complete_lines(self, file: BinaryIO) -> Iterator[bytes]:
        while line := file.readline(LONGEST_LINE):
            if not line.endswith(b"\n"):
                if len(line) < LONGEST_LINE or not _skip_to_newline(file):
                    return
                line = b"null"
            self._offset = file.tell()
            yield line


@dataclass(frozen=True)
class Position:
    """How far a file has got: which file it is (another after it was replaced), its last row."""

    generation: str = ""
    last_row: Mapping[str, Any] = field(default_factory=dict)


def position(path: pathlib.Path) -> Position:
    """From the end of the file alone: cheap, however long it is."""
    try:
        with open_stored(path) as file:
            status = os.fstat(file.fileno())
            file.seek(max(status.st_size - END, 0))
            *lines, _ = file.read(END).split(b"\n")
    except OSError:
        return Position()
    rows = (row for row in map(parse_object, reversed(lines)) if row is not None)
    return Position(str(status.st_ino), next(rows, {}))


def parse_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object on a line; None where there is none."""
    try:
        row = _loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _loads(text: bytes) -> Any:
    """orjson is several times faster; Python's own reads what it refuses: NaN, lone surrogates."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text.decode("utf-8", "replace"))


def parse_objects(lines: list[bytes]) -> list[dict[str, Any]]:
    """The objects on these lines, without those that are none."""
    try:  # all at once, which is several times faster, and right if every line is one value
        rows = _loads(b"[" + b",".join(lines) + b"]")
        if len(rows) == len(lines) and all(type(row) is dict for row in rows):
            return rows
    except (ValueError, RecursionError):
        pass
    return [row for row in map(parse_object, lines) if row is not None]


def _skip_to_newline(file: BinaryIO) -> bool:
    """Leave a line that is too long to be one of ours; False while its end is not written."""
    while rest := file.readline(LONGEST_LINE):
        if rest.endswith(b"\n"):
            return True
    return False
