"""Values from files that anyone may have written, as what can be shown of them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.view.catalog import Run
from groupwise.view.jsonl_tail import parse_object
from groupwise.view.stored_file import open_stored

LONGEST_SUMMARY = 1_000_000


def finite(value: Any) -> float | None:
    """A number that JSON can hold; NaN, infinities and what is no number become None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond any float
        return None


def whole(value: Any) -> int | None:
    """A whole number that a page can hold; None for anything else."""
    return value if type(value) is int and abs(value) < 2**53 else None


def number(value: Any) -> float | None:
    """Of a number or a verdict; of several, their mean."""
    if isinstance(value, list):
        return mean([number(each) for each in value])
    return finite(float(value) if isinstance(value, bool) else value)


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def read_summary(run: Run) -> dict[str, Any]:
    """summary.json of a finished run; empty before."""
    try:
        with open_stored(run.file("summary.json")) as file:
            return parse_object(file.read(LONGEST_SUMMARY)) or {}
    except OSError:
        return {}
