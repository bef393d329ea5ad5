"""YAML as recipes need it, from anyone: bounded in time and memory, and one clear error.

Beside what YAML itself refuses: a key twice in one block, values that contain themselves, aliases
that stand for more values than a recipe has, deep nests, numbers that are not finite, and kinds of
values that no setting has (dates, sets, binary data).
"""

import math
import pathlib
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from groupwise.errors import ConfigError, quoted, shortened

LONGEST_TEXT = 250_000
DEEPEST = 30
MOST_VALUES = 20_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one where it was built
# Python takes quadratic time for the digits of a number, and YAML's `1:30` is a number too.
_LONG_NUMBER = re.compile(r"[-+]?[0-9.][0-9a-fA-FxXoO_:.]{300,}")


def read_yaml_file(path: pathlib.Path | str) -> Any:
    """What a file holds, None if nothing. Raises ConfigError."""
    name = shortened(str(path))
    try:
        path = pathlib.Path(path)
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe could keep us waiting
            raise ConfigError(f"{name} is not a file")
        with path.open("rb") as file:
            data = file.read(LONGEST_TEXT + 1)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL byte in the path
        raise ConfigError(f"{name} cannot be read: {error}") from error
    try:
        if len(data) > LONGEST_TEXT:
            raise ConfigError(f"it is longer than {LONGEST_TEXT} bytes")
        return load_yaml(data.decode("utf-8"))
    except ValueError as error:  # a ConfigError is one, and so is bad UTF-8
        raise ConfigError(f"{name}: {error}") from error


def load_yaml(text: str) -> Any:
    """The value of a text. Raises ConfigError, whose message quotes little of the text."""
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"it is longer than {LONGEST_TEXT} characters")
    try:
        _check_structure(text)
        value = yaml.load(text, Loader=_LOADER)
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        where = f" ({_place(error.problem_mark)})" if error.problem_mark else ""
        raise ConfigError(f"{shortened(error.problem or error.context or '')}{where}") from error
    except (yaml.YAMLError, ValueError) as error:  # a NUL byte; `!!int x`, month 13
        why = shortened(str(error).splitlines()[0])
        raise ConfigError(f"a value cannot be read: {why}") from error
    except (LookupError, TypeError, AttributeError) as error:  # `!!bool x`, `!!timestamp x`
        raise ConfigError("a value has not the form that its tag asks for") from error
    for problem in _wrong_values(value, ()):
        raise ConfigError(problem)
    return value


@dataclass
class _Block:
    """A list or a block that is being read."""

    start: int
    """How many values stood before it."""
    anchor: str | None
    is_mapping: bool = False
    keys: dict[str, Any] = field(default_factory=dict)
    parts: int = 0


def _check_structure(text: str) -> None:
    """Refuses what would be harmful to build: it only walks over the text."""
    blocks: list[_Block] = []
    sizes: dict[str, int] = {}  # by anchor: how many values an alias for it stands for
    count = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            block = blocks.pop()
            if block.anchor:
                sizes[block.anchor] = count - block.start
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        line = _place(event.start_mark)
        if blocks:
            _note_part(blocks[-1], event, line)
        if isinstance(event, yaml.AliasEvent):
            if any(block.anchor == event.anchor for block in blocks):
                raise ConfigError(f"*{shortened(event.anchor)} contains itself ({line})")
            count += sizes.get(event.anchor, 1)
        else:
            count += 1
            sizes[event.anchor or ""] = 1
        if isinstance(event, yaml.CollectionStartEvent):
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            blocks.append(_Block(count, event.anchor, is_mapping))
        elif isinstance(event, yaml.ScalarEvent):
            _check_number(event, line)
        if len(blocks) > DEEPEST:
            raise ConfigError(f"it is nested more than {DEEPEST} deep ({line})")
        if count > MOST_VALUES:
            raise ConfigError(f"it stands for more than {MOST_VALUES} values ({line})")


def _note_part(block: _Block, event: yaml.NodeEvent, line: str) -> None:
    """Count the parts of a block, keys and values in turn, and refuse a key that came before."""
    block.parts += 1
    if not block.is_mapping or block.parts % 2 == 0 or not isinstance(event, yaml.ScalarEvent):
        return
    if event.value in block.keys:
        raise ConfigError(
            f"the key {quoted(event.value)} is there twice: {block.keys[event.value]} and {line}"
        )
    block.keys[event.value] = line


def _check_number(event: yaml.ScalarEvent, line: str) -> None:
    plain = event.style is None or event.style == ""
    if (plain or event.tag is not None) and _LONG_NUMBER.match(event.value):
        raise ConfigError(f"{quoted(event.value, 40)} is too long for a number ({line})")


def _wrong_values(value: Any, path: tuple[str, ...]) -> Iterator[str]:
    name = quoted(".".join(path)) if path else "the value"
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str | int) or isinstance(key, bool):
                yield f"the key {shortened(repr(key))} in {name} is no text: put it in quotes"
            yield from _wrong_values(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _wrong_values(inner, (*path, str(index)))
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{name} is {value}, which is no finite number"
    elif isinstance(value, str) and "\0" in value:
        yield f"{name} holds a NUL character"
    elif not isinstance(value, str | int | float | None):
        kind = type(value).__name__
        yield f"{name} is read as a {kind}, which no setting is: put it in quotes to make it text"


def _place(mark: Any) -> str:
    return f"line {mark.line + 1}"
