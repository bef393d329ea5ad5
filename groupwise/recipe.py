"""Recipes: YAML files and `key.sub=value` overrides, read into a Config or refused with the fix."""

import difflib
import os
import pathlib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from groupwise.config import AnyTask, Config
from groupwise.errors import ConfigError

DEFAULT = "demo"

# A plain string where a block is expected names its kind: `task: countdown`, `algorithm: dapo`.
SHORTHAND = {
    "task": "kind",
    "engine": "kind",
    "reference": "kind",
    "adapter": "kind",
    "algorithm": "preset",
}


def recipes_folder() -> pathlib.Path:
    """Our own recipes: beside the package in a checkout, inside it when installed."""
    package = pathlib.Path(__file__).parent
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def list_recipes() -> dict[str, pathlib.Path]:
    return {path.stem: path for path in sorted(recipes_folder().glob("*.yaml"))}


def load_recipe(name: str | None = None, overrides: Iterable[str] = ()) -> Config:
    """`load_recipe("demo", ["steps=5"])`; a name of ours or a path to a YAML file."""
    return parse(read_yaml(find_recipe(name or DEFAULT)), overrides)


def find_recipe(name: str) -> pathlib.Path:
    known = list_recipes()
    if name in known:
        return known[name]
    path = pathlib.Path(name)
    if path.is_file():
        return path
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    raise ConfigError(f"no recipe {name!r}: not a recipe of ours and not a file; {hint}")


def read_yaml(path: pathlib.Path | str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold `key: value` lines, not a {type(data).__name__}")
    return data


def parse(data: Mapping[str, Any], overrides: Iterable[str] = ()) -> Config:
    tree = _expand_shorthand(data)
    for override in overrides:
        _apply(tree, override)
    if isinstance(tree.get("task"), dict):
        tree["task"].setdefault("kind", Config.model_fields["task"].default.kind)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item) for item in error.errors())) from None


def write_config(config: Config, path: pathlib.Path) -> None:
    """The resolved config, presets expanded: reading it back gives an equal Config."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _expand_shorthand(data: Mapping[str, Any]) -> dict[str, Any]:
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    for key in SHORTHAND:
        value = tree.get(key)
        if isinstance(value, str):
            tree[key] = block_of(key, value)
    return tree


def block_of(key: str, text: str) -> dict[str, Any]:
    """`countdown` is {kind: countdown}, and `gym:countdown` {kind: gym, name: countdown}."""
    kind, colon, name = text.partition(":")
    if key == "task" and colon:
        return {"kind": kind, "name": name}
    return {SHORTHAND[key]: text}


def _apply(tree: dict[str, Any], override: str) -> None:
    key, found, text = override.partition("=")
    if not found:
        raise ConfigError(f"override {override!r} must look like key=value, e.g. batch.prompts=8")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: {text!r} is not a YAML value") from error
    *parents, last = key.split(".")
    node = tree
    for depth, parent in enumerate(parents):
        child = node.get(parent)
        if child is None:
            child = {}
        if not isinstance(child, dict):
            where = ".".join(parents[: depth + 1])
            raise ConfigError(f"override {override!r}: {where} is a value, not a block")
        node[parent] = child
        node = child
    if not parents and last in SHORTHAND and isinstance(value, str):
        value = block_of(last, value)
    node[last] = value


def _explain(item: Any) -> str:
    """One pydantic error in our words, with the nearest known name where a key is unknown."""
    kinds = {model.model_fields["kind"].default for model in _models_in(AnyTask)}
    location = list(item["loc"])
    if location[:1] == ["task"] and location[1:2] and location[1] in kinds:
        del location[1]  # pydantic names the member of the union there
    name = ".".join(str(part) for part in location) or "recipe"
    if item["type"] == "extra_forbidden":
        known = _fields_at(item["loc"][:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        return f"unknown setting {name!r}: {hint}"
    message = item["msg"].removeprefix("Value error, ")
    given = (
        f", not {item['input']!r}" if isinstance(item["input"], str | int | float | None) else ""
    )
    return f"{name}: {message[:1].lower()}{message[1:]}{given}"


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    """The field names of the block that a pydantic error location points to."""
    candidates: list[Any] = [Config]
    for part in location:
        following: list[Any] = []
        for candidate in candidates:
            if not (isinstance(candidate, type) and issubclass(candidate, BaseModel)):
                continue
            kind = candidate.model_fields.get("kind")
            if kind is not None and kind.default == part:
                following.append(candidate)
            elif part in candidate.model_fields:
                following += _models_in(candidate.model_fields[str(part)].annotation)
        candidates = following or (candidates if isinstance(part, int) else [])
    return sorted({name for model in candidates for name in model.model_fields})


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.UnionType) or typing.get_args(annotation):
        return [model for part in typing.get_args(annotation) for model in _models_in(part)]
    return []
