"""Recipes: YAML files and `key.sub=value` overrides, read into a Config or refused with the fix.

`files.py` finds and reads recipe files; `parse.py` makes a Config of settings; `strict_yaml.py`
reads YAML that anyone may have written; `tiny.py` makes any Config a run of seconds (`--tiny`).
"""

from groupwise.recipe.files import (
    DEFAULT,
    config_text,
    find_recipe,
    list_recipes,
    load_recipe,
    parse_file,
    read_config,
    read_recipe,
    read_yaml,
    write_config,
)
from groupwise.recipe.parse import parse

__all__ = [
    "DEFAULT", "config_text", "find_recipe", "list_recipes", "load_recipe", "parse",
    "parse_file", "read_config", "read_recipe", "read_yaml", "write_config",
]  # fmt: skip
