"""A step's stored answers: a compressed file that anyone may have made."""

import gzip
import json
import pathlib
from typing import Any

LARGEST_RATIO, SMALL_FILE = 200, 16_000_000


def read_rollouts(path: pathlib.Path) -> list[dict[str, Any]]:
    """The groups of one stored step, as plain dicts (`group_from_json` makes them groups)."""
    most = most_unpacked(path.stat().st_size)
    with gzip.open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it unpacks to more than {LARGEST_RATIO} times its size")
    return [json.loads(line) for line in data.splitlines()]


def most_unpacked(size: int) -> int:
    """Bytes that a file of answers may hold: they shrink to a tenth or so in it. What unpacks to
    hundreds of times its size is no run's."""
    return SMALL_FILE + LARGEST_RATIO * size
