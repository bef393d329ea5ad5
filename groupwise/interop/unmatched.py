"""Fields of a GRPOConfig that have no counterpart here: which they are, and what to say of them."""

import dataclasses
import difflib
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from groupwise.interop.defaults import HINTS, NOTHING_LOST
from groupwise.interop.grpo_fields import ALL, COMMAND_LINE


def fields_of(args: Any) -> dict[str, Any]:
    """What a GRPOConfig object, TRL's or ours, says other than TRL's defaults, as plain values."""
    given = {f.name: getattr(args, f.name) for f in dataclasses.fields(args)}
    plain = {name: getattr(value, "value", value) for name, value in given.items()}
    return {n: v for n, v in plain.items() if not (n in ALL and same_value(v, ALL[n]))}


def unmatched(fields: Mapping[str, Any], used: set[str]) -> Iterator[tuple[str, str]]:
    """What differs from TRL's default and has no counterpart; a name that TRL does not have is
    told from one that we do not follow."""
    for name, value in fields.items():
        if name in used or name in NOTHING_LOST:
            continue
        if name not in ALL and name not in COMMAND_LINE:
            near = difflib.get_close_matches(str(name), [*ALL, *COMMAND_LINE], n=1)
            meant = f": did you mean {near[0]}?" if near else ""
            yield str(name), f"{brief(name)} is no field of TRL's GRPOConfig{meant}"
        elif not (value in (None, False) or same_value(value, ALL.get(name))):
            hint = f" ({HINTS[name]})" if name in HINTS else ""
            yield name, f"{name}={brief(value)}{hint}"


def same_value(value: Any, default: Any) -> bool:
    """Whether a value is TRL's default, as it was given or as GRPOConfig makes it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return value == type(value)()  # AcceleratorConfig stands for None
    if value in ([], {}, "") and default in (None, [], {}, ""):
        return True
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def brief(value: Any) -> str:
    """Bounded, however deep: a few lines of YAML can stand for billions of values."""
    shown = reprlib.Repr()
    shown.maxlevel = 2
    return value[:100] if isinstance(value, str) else shown.repr(value)
