"""Recipe files: where they are, what they hold, and the config that one gives.

Beside settings a recipe file may hold two blocks that are none: `presets:`, named blocks that
replace some of its settings (`--preset quick`), and `tiny:`, what `--tiny` cannot find out by
itself, such as a stand-in for a reward model; a preset may have a `tiny:` of its own. Its first
comment lines say what it is, the size of its model and its hardware.
"""

import contextlib
import difflib
import os
import pathlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from groupwise.config import Config
from groupwise.config.blocks import merged
from groupwise.config.code import check_code
from groupwise.errors import ConfigError, quoted, type_name
from groupwise.recipe.parse import Overrides, parse
from groupwise.recipe.strict_yaml import load_yaml, read_yaml_file
from groupwise.recipe.tiny import tiny as made_tiny
from groupwise.secrets import without_secrets

DEFAULT = "demo"


def recipes_folder() -> pathlib.Path:
    """Our own recipes: beside the package in a checkout, inside it when installed."""
    package = pathlib.Path(__file__).parent.parent
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
            block = dict(self.presets[name])
            stand_ins = block.pop("tiny", {})
            return merged(merged(settings, block), stand_ins if tiny else {})
        near = difflib.get_close_matches(name, self.presets, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(self.presets)}"
        if not self.presets:
            hint = "it has none; `groupwise recipes` lists those that do"
        raise ConfigError(f"recipe {self.name} has no preset {name!r}; {hint}")


def load_recipe(
    name: str | None = None,
    overrides: Overrides = (),
    *,
    preset: str | None = None,
    tiny: bool = False,
    trust_code: bool = False,
) -> Config:
    """`load_recipe("demo", {"steps": 5})`; a name of ours or a path to a YAML file.

    Overrides are a dict, {"steps": 5, "batch.prompts": 4}, or as in the shell ["steps=5", ...].

    `tiny` makes it a run of seconds on a CPU; overrides have the last word over that too.
    `trust_code`: functions that the file names may run, if they are marked as tasks or rewards.
    """
    path = find_recipe(name or DEFAULT)
    recipe = read_recipe(path)
    overrides = _kept(overrides)
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
        blocks |= {
            f"presets.{name}.tiny": block["tiny"]
            for name, block in presets.items()
            if isinstance(block, dict) and "tiny" in block
        }
    for key, block in blocks.items():
        if not isinstance(block, dict):
            shown = quoted(repr(block))
            raise ConfigError(f"{path}: {quoted(key)} must be a block of settings, not {shown}")
    return Recipe(path.stem, tree, presets, tiny, **_header(path))


def _header(path: pathlib.Path) -> dict[str, str]:
    """The comment lines that a file begins with: the first in full, then `# size: ...`."""
    header: dict[str, str] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if not text.startswith("#"):
            break
        key, _, value = text.removeprefix("#").partition(":")
        if number == 0:
            header["line"] = text.removeprefix("#").strip()
        elif key.strip() in ("size", "hardware"):
            header[key.strip()] = value.strip()
    return header


def find_recipe(name: str) -> pathlib.Path:
    known = list_recipes()
    if name in known:
        return known[name]
    path = pathlib.Path(name)
    with contextlib.suppress(OSError, ValueError):  # longer than paths may be, or a NUL byte in it
        if path.is_file():
            return path
    near = difflib.get_close_matches(name[:200], known, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(known)}"
    if "/" in name:  # a path, not one of these names misspelt
        hint = " or folder that exists"
    raise ConfigError(f"no recipe {quoted(name)}: not a recipe of ours and not a file{hint}")


def read_yaml(path: pathlib.Path | str) -> dict[str, Any]:
    data = read_yaml_file(path)
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold `key: value` lines, not {type_name(data)}")
    return data


def read_config(path: pathlib.Path, *, trust_code: bool = False) -> Config:
    """The config in a file, to be run. Those who only look at it may use parse(read_yaml(path))."""
    return parse_file(path, read_yaml(path), trust_code=trust_code)


def parse_file(
    path: pathlib.Path,
    settings: Mapping[str, Any],
    overrides: Overrides = (),
    *,
    trust_code: bool = False,
) -> Config:
    """Settings that are from the file `path`: code that it names runs only when trusted.

    Overrides are the user's own words, and so is the code that they name.
    """
    overrides = _kept(overrides)
    config = parse(settings, overrides)
    check_code(config, path, _typed(overrides), trust_code=trust_code)
    return config


def _kept(overrides: Overrides) -> Overrides:
    """The overrides as a list: they are read more than once, and may be an iterator."""
    return overrides if isinstance(overrides, Mapping | str) else list(overrides)


def _typed(overrides: Overrides) -> set[tuple[str, str]]:
    """Every text in overrides with its block: ["task.path=a.py:f"] gives {("task", "a.py:f")}."""
    if isinstance(overrides, Mapping):
        pairs = list(overrides.items())
    else:
        split = (override.partition("=") for override in overrides)
        pairs = [(key, load_yaml(value)) for key, _, value in split]
    return {(key.split(".")[0], text) for key, value in pairs for text in _texts(value)}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def write_config(config: Config, path: pathlib.Path) -> None:
    """The resolved config, presets expanded; reading it back gives an equal Config.

    Except for secrets, which are masked: the recipe has them, a run folder may be given away.
    """
    temporary = path.with_suffix(".tmp")
    temporary.write_text(config_text(config), encoding="utf-8")
    os.replace(temporary, path)


def config_text(config: Config) -> str:
    """Every setting as YAML, with secrets masked."""
    settings = without_secrets(config.model_dump(mode="json"))
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
