"""Recipes: YAML files and `key.sub=value` overrides, read into a Config or refused with the fix.

Beside settings a recipe file may hold two blocks that are none: `presets:`, named blocks that
replace some of its settings (`--preset quick`), and `tiny:`, what `--tiny` cannot find out by
itself, such as a stand-in for a reward model. Its first comment lines say what it is, the size of
its model and its hardware.
"""

import contextlib
import difflib
import os
import pathlib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from groupwise.config import Config
from groupwise.config.code import check_code
from groupwise.errors import ConfigError, quoted, shortened
from groupwise.objective.objective import Objective
from groupwise.secrets import without_secrets
from groupwise.strict_yaml import DEEPEST, load_yaml, read_yaml_file
from groupwise.tiny_run import tiny as made_tiny

DEFAULT = "demo"
LONGEST_MESSAGE = 600
MOST_ERRORS = 10
"""Of a recipe that is wrong in many places, the first few are named."""

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


@dataclass(frozen=True)
class Recipe:
    """A recipe file: settings, what may replace them, and what its first lines say about it."""

    name: str
    settings: Mapping[str, Any]
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tiny: Mapping[str, Any] = field(default_factory=dict)
    line: str = ""
    """What it is, in one line."""
    size: str = ""
    """The size of its model."""
    hardware: str = ""
    """What it is meant to run on."""

    def under(self, name: str | None, tiny: bool = False) -> Mapping[str, Any]:
        """Its settings under one of its presets, which goes over `tiny:` too; None: its own."""
        settings = merged(self.settings, self.tiny) if tiny else self.settings
        if name is None:
            return settings
        if name in self.presets:
            return merged(settings, self.presets[name])
        near = difflib.get_close_matches(name, self.presets, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(self.presets)}"
        if not self.presets:
            hint = "it has none; `groupwise recipes` lists those that do"
        raise ConfigError(f"recipe {self.name} has no preset {name!r}; {hint}")


def load_recipe(
    name: str | None = None,
    overrides: Iterable[str] = (),
    *,
    preset: str | None = None,
    tiny: bool = False,
    trust_code: bool = False,
) -> Config:
    """`load_recipe("demo", ["steps=5"])`; a name of ours or a path to a YAML file.

    `tiny` makes it a run of seconds on a CPU; overrides have the last word over that too.
    `trust_code`: functions that the file names may run, if they are marked as tasks or rewards.
    """
    path = find_recipe(name or DEFAULT)
    recipe = read_recipe(path)
    overrides = list(overrides)
    config = parse_file(path, recipe.under(preset, tiny), overrides, trust_code=trust_code)
    if not tiny:
        return config
    return parse(made_tiny(config).model_dump(mode="json"), overrides)


def read_recipe(path: pathlib.Path) -> Recipe:
    tree = read_yaml(path)
    presets, tiny = tree.pop("presets", None) or {}, tree.pop("tiny", None) or {}
    blocks = {"tiny": tiny, "presets": presets}
    if isinstance(presets, dict):
        presets = {str(name): block or {} for name, block in presets.items()}
        blocks |= {f"presets.{name}": block for name, block in presets.items()}
    for key, block in blocks.items():
        if not isinstance(block, dict):
            shown = quoted(repr(block))
            raise ConfigError(f"{path}: {quoted(key)} must be a block of settings, not {shown}")
    return Recipe(path.stem, tree, presets, tiny, **_header(path))


def _header(path: pathlib.Path) -> dict[str, str]:
    """The comment lines that a file begins with: the first in full, then `# size: ...`."""
    found: dict[str, str] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if not text.startswith("#"):
            break
        key, _, value = text.removeprefix("#").partition(":")
        if number == 0:
            found["line"] = text.removeprefix("#").strip()
        elif key.strip() in ("size", "hardware"):
            found[key.strip()] = value.strip()
    return found


def merged(settings: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with those of `block` over them. A block of another kind replaces the whole."""
    tree, over = _expand_shorthand(settings), _expand_shorthand(block)
    for key, value in over.items():
        own = tree.get(key)
        names = [name for name in ("kind", "preset") if isinstance(value, dict) and name in value]
        same = isinstance(own, dict) and all(own.get(n) == value[n] for n in names)
        joined = same and isinstance(value, dict)
        tree[key] = {**own, **value} if joined and isinstance(own, dict) else value
    return tree


def find_recipe(name: str) -> pathlib.Path:
    known = list_recipes()
    if name in known:
        return known[name]
    path = pathlib.Path(name)
    with contextlib.suppress(OSError, ValueError):  # longer than paths may be, or a NUL byte in it
        if path.is_file():
            return path
    near = difflib.get_close_matches(name[:200], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    raise ConfigError(f"no recipe {quoted(name)}: not a recipe of ours and not a file; {hint}")


def read_yaml(path: pathlib.Path | str) -> dict[str, Any]:
    data = read_yaml_file(path)
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
        lines = [_explain(item) for item in error.errors()[:MOST_ERRORS]]
        if error.error_count() > MOST_ERRORS:
            lines.append(f"... and {error.error_count() - MOST_ERRORS} more")
        raise ConfigError("\n".join(lines)) from None


def read_config(
    path: pathlib.Path, overrides: Iterable[str] = (), *, trust_code: bool = False
) -> Config:
    """The config in a file, to be run. Those who only look at it may use parse(read_yaml(path))."""
    return parse_file(path, read_yaml(path), overrides, trust_code=trust_code)


def parse_file(
    path: pathlib.Path,
    settings: Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    trust_code: bool = False,
) -> Config:
    """Settings that are from the file `path`: code that it names runs only when trusted.

    Overrides are the user's own words, and so is the code that they name.
    """
    overrides = list(overrides)
    config = parse(settings, overrides)
    check_code(config, path, _typed(overrides), trust_code=trust_code)
    return config


def _typed(overrides: Iterable[str]) -> set[tuple[str, str]]:
    """Every text in overrides with its block: ["task.path=a.py:f"] gives {("task", "a.py:f")}."""
    split = (override.partition("=") for override in overrides)
    values: list[tuple[str, Any]] = [(k.split(".")[0], load_yaml(v)) for k, _, v in split]
    texts: set[tuple[str, str]] = set()
    seen: set[int] = set()  # YAML may hold a list inside itself
    while values:
        block, value = values.pop()
        if isinstance(value, str):
            texts.add((block, value))
        elif isinstance(value, dict | list) and id(value) not in seen:
            seen.add(id(value))
            values += [(block, v) for v in (value.values() if isinstance(value, dict) else value)]
    return texts


def write_config(config: Config, path: pathlib.Path) -> None:
    """The resolved config, presets expanded; reading it back gives an equal Config.

    Except for secrets, which are masked: the recipe has them, a run folder may be given away.
    """
    settings = without_secrets(config.model_dump(mode="json"))
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
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
    if not found or not key:
        raise ConfigError(
            f"override {quoted(override)} must look like key=value, e.g. batch.prompts=8"
        )
    try:
        value = load_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"override {quoted(override)}: {error}") from error
    *parents, last = key.split(".")
    if len(parents) > DEEPEST:
        raise ConfigError(f"override {quoted(override)} is nested more than {DEEPEST} deep")
    node = tree
    for depth, parent in enumerate(parents):
        child = node.get(parent)
        if not isinstance(child, dict | None):
            where = shortened(".".join(parents[: depth + 1]))
            raise ConfigError(f"override {quoted(override)}: {where} is a value, not a block")
        node[parent] = dict(child or {})  # a copy: an alias may stand for the same block elsewhere
        node = node[parent]
    if not parents and last in SHORTHAND and isinstance(value, str):
        value = block_of(last, value)
    node[last] = value


def _explain(item: Any) -> str:
    """One pydantic error in our words, with the nearest known name where a key is unknown."""
    location = _without_kinds(item["loc"])
    name = ".".join(str(part) for part in location) or "recipe"
    if item["type"] == "extra_forbidden":
        known = _fields_at(item["loc"][:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        return f"unknown setting {quoted(name)}: {hint}"
    message, value = item["msg"].removeprefix("Value error, "), item["input"]
    shown = quoted(value) if isinstance(value, str) else repr(value)
    given = f", not {shown}" if isinstance(value, str | int | float | None) else ""
    message = shortened(message[:1].lower() + message[1:], LONGEST_MESSAGE)
    return f"{shortened(name)}: {message}{given}"


def _without_kinds(location: tuple[int | str, ...]) -> list[int | str]:
    """Where the user wrote it: pydantic names the member of a union on the way."""
    settings: list[int | str] = []
    for depth, part in enumerate(location):
        kinds = [model.model_fields.get("kind") for model in _models_at(location[:depth])]
        if not any(kind is not None and kind.default == part for kind in kinds):
            settings.append(part)
    return settings


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    """The field names of the block that a pydantic error location points to."""
    models = _models_at(location)
    names = {name for model in models for name in model.model_fields}
    if Objective in models:  # settings of its surrogate and estimator may stand beside its own
        names |= set(_fields_at((*location, "surrogate")) + _fields_at((*location, "advantage")))
    return sorted(names)


def _models_at(location: tuple[int | str, ...]) -> list[type[BaseModel]]:
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
    return candidates


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.UnionType) or typing.get_args(annotation):
        return [model for part in typing.get_args(annotation) for model in _models_in(part)]
    return []
