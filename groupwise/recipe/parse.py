"""Settings and `key.sub=value` overrides as a Config, or one message that names the fix."""

from collections.abc import Iterable, Mapping
from typing import Any

from groupwise.config import Config
from groupwise.config.blocks import SHORTHAND, block_of, expand_shorthand, with_changes
from groupwise.config.environment import environment_kind
from groupwise.config.validation import validated
from groupwise.errors import ConfigError, quoted, shortened
from groupwise.recipe.strict_yaml import DEEPEST, load_yaml

Overrides = Iterable[str] | Mapping[str, Any]
"""["steps=5", "batch.prompts=4"], or {"steps": 5, "batch": {"prompts": 4}}"""


def parse(data: Mapping[str, Any], overrides: Overrides = ()) -> Config:
    tree = expand_shorthand(data)
    if isinstance(overrides, Mapping):
        tree = with_changes(tree, overrides)
    elif isinstance(overrides, str):
        raise ConfigError(f"overrides are a list: [{overrides!r}], or a dict")
    else:
        for override in overrides:
            _apply(tree, override)
    brings_task = environment_kind(tree.get("environment")) == "verifiers"
    if isinstance(tree.get("task"), dict) and not brings_task:
        tree["task"].setdefault("kind", Config.model_fields["task"].default.kind)
    return validated(Config, tree)


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"override {quoted(override)} must look like key=value, e.g. batch.prompts=8"
        )
    try:
        value = _value(text)
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


def _value(text: str) -> Any:
    """What is typed is YAML. A sentence is text, also with a `: ` or ` #` that means more there."""
    is_sentence = text[:1].isalpha() and "\n" not in text and " " in text.partition(": ")[0]
    return text if is_sentence else load_yaml(text)
