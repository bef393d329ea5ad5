"""Pydantic's errors about settings in our words: one message that names the fix."""

import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from groupwise.errors import ConfigError, quoted, shortened
from groupwise.extensions import nearest
from groupwise.objective.objective import Objective

LONGEST_MESSAGE = 600
MOST_ERRORS = 10
"""Of a recipe that is wrong in many places, the first few are named."""

IN_OUR_WORDS = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "union_tag_not_found": "must be a block of settings with a `kind`",
}
"""pydantic's type of an error -> what the setting must be."""

Model = TypeVar("Model", bound=BaseModel)


def validated(root: type[Model], tree: Mapping[str, Any]) -> Model:
    """The settings that a tree of plain values holds, or a ConfigError that says what is wrong."""
    try:
        return root.model_validate(tree)
    except ValidationError as error:
        lines = [_explain(item, root) for item in error.errors()[:MOST_ERRORS]]
        if error.error_count() > MOST_ERRORS:
            lines.append(f"... and {error.error_count() - MOST_ERRORS} more")
        raise ConfigError("\n".join(lines)) from None


def _explain(item: Any, root: type[BaseModel]) -> str:
    """One pydantic error in our words, with the nearest known name where a key is unknown."""
    location = _without_kinds(item["loc"], root)
    name = ".".join(str(part) for part in location) or "recipe"
    if item["type"] == "extra_forbidden":
        known = _fields_at(tuple(location[:-1]), root)
        kinds = [
            kind
            for model in _models_at(tuple(location[:-1]), root)
            if (kind := _kind(model, location[-1]))
        ]
        if kinds:
            return f"{name} is for {location[-2]}.kind={' or '.join(kinds)}"
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        return f"unknown setting {quoted(name)}: {hint}"
    said: str = item["msg"]
    value = item["input"]
    if item["type"] == "union_tag_invalid":
        kind, kinds = item["ctx"]["tag"], item["ctx"]["expected_tags"].replace("'", "")
        near = nearest(kind[:100], kinds.split(", "))
        return f"{name}.kind: must be {kinds}, not {quoted(kind)}{near}"
    message = IN_OUR_WORDS.get(item["type"], said.removeprefix("Value error, "))
    shown = quoted(value) if isinstance(value, str) else repr(value)
    given = f", not {shown}" if isinstance(value, str | int | float | None) else ""
    message = shortened(message[:1].lower() + message[1:], LONGEST_MESSAGE)
    return f"{shortened(name)}: {message}{given}"


def _kind(model: type[BaseModel], field: int | str) -> str | None:
    """The kind of settings that a field belongs to."""
    if field not in model.model_fields or "kind" not in model.model_fields:
        return None
    kind = model.model_fields["kind"].default
    return kind if isinstance(kind, str) else "file.py:Class"


def _without_kinds(location: tuple[int | str, ...], root: type[BaseModel]) -> list[int | str]:
    """Where the user wrote it: pydantic names the member of a union on the way."""
    settings: list[int | str] = []
    for depth, part in enumerate(location):
        kinds = [model.model_fields.get("kind") for model in _models_at(location[:depth], root)]
        if not any(kind is not None and kind.default == part for kind in kinds):
            settings.append(part)
    return settings


def _fields_at(location: tuple[int | str, ...], root: type[BaseModel]) -> list[str]:
    """The field names of the block that a pydantic error location points to."""
    models = _models_at(location, root)
    names = {name for model in models for name in model.model_fields}
    if Objective in models:  # settings of its surrogate and estimator may stand beside its own
        for part in ("surrogate", "advantage"):
            names |= set(_fields_at((*location, part), root))
    return sorted(names)


def _models_at(location: tuple[int | str, ...], root: type[BaseModel]) -> list[type[BaseModel]]:
    candidates: list[Any] = [root]
    for part in location:
        following: list[Any] = []
        for candidate in candidates:
            if not (isinstance(candidate, type) and issubclass(candidate, BaseModel)):
                continue
            kind = candidate.model_fields.get("kind")
            if kind is not None and kind.default == part:
                following.append(candidate)
            elif part in candidate.model_fields:
                following += models_in(candidate.model_fields[str(part)].annotation)
        candidates = following or (candidates if isinstance(part, int) else [])
    return candidates


def models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.UnionType) or typing.get_args(annotation):
        return [model for part in typing.get_args(annotation) for model in models_in(part)]
    return []
