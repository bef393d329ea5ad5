"""Settings that name code, and the one place that decides whether a file may name it."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from groupwise.errors import ConfigError
from groupwise.extensions import Code, is_marked, load_object, marking


@dataclass(frozen=True)
class NamedCode:
    """NamedCode("task.path", "task", "my_task.py:build")"""

    setting: str
    kind: str
    reference: str
    marked: bool = True
    """Whether its author can mark it, which is asked for then."""

    @property
    def block(self) -> str:
        return self.setting.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.setting}={self.reference}"


def named_code(settings: BaseModel, prefix: str = "") -> Iterator[NamedCode]:
    """Every setting that would import code, and every word of one that would start a program."""
    for name, field in type(settings).model_fields.items():
        value: Any = getattr(settings, name)
        for mark in field.metadata:
            for at, reference in _references(value):
                if isinstance(mark, Code) and mark.takes(reference):
                    yield NamedCode(f"{prefix}{name}{at}", mark.kind, reference, not mark.always)
        numbered = enumerate(value) if isinstance(value, tuple) else [(None, value)]
        for number, item in numbered:
            if isinstance(item, BaseModel):
                at = "" if number is None else f"{number}."
                yield from named_code(item, f"{prefix}{name}.{at}")


def _references(value: Any) -> list[tuple[str, Any]]:
    """What a setting names, with its place: one, several, or several by name."""
    if isinstance(value, dict):
        return [(f".{name}", reference) for name, reference in value.items()]
    if isinstance(value, tuple):
        return [(f".{number}", reference) for number, reference in enumerate(value)]
    return [("", value)]


def check_code(
    config: BaseModel, file: Path | str, typed: Collection[tuple[str, str]], *, trust_code: bool
) -> None:
    """Refuse code that `file` names and the user did not type, unless it is trusted and marked.

    `typed` holds what was typed, with its block: ("task", "my_task.py:build").
    """
    foreign = [code for code in named_code(config) if (code.block, code.reference) not in typed]
    if foreign and not trust_code:
        raise ConfigError(
            f"{file} names code to run: {', '.join(map(str, foreign))}. Code that a file names is "
            "not run unless you say so: read it, then add --trust-code (in Python: trust_code=True)"
        )
    for code in foreign:
        if code.marked and not is_marked(load_object(code.reference, what=code.setting), code.kind):
            raise ConfigError(
                f"{file}: {code} is not marked as a {code.kind}. With --trust-code a file may name "
                f"only what is: {marking(code.kind)}, or name it on the command line instead of in "
                "the file"
            )
