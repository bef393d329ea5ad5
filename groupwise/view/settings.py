"""A run's settings as flat names, to lay runs beside each other and to tell which differ in seed.

Read as plain YAML, not as a Config: a run of another version has names that this one does not know.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from groupwise.config.flat import leaves, within
from groupwise.errors import ConfigError
from groupwise.recipe.strict_yaml import LONGEST_TEXT, load_yaml
from groupwise.view.catalog import Run
from groupwise.view.stored_file import open_stored
from groupwise.view.stored_group import Unreadable

NO_LIMIT = 1_000_000_000
"""What a script for TRL has where TRL has no such limit."""

# Where two runs may differ and still be the same experiment with another seed.
NOT_THE_EXPERIMENT = ("seed", "tracking", "checkpoint", "engine.max_batch")


def read_settings(run: Run) -> dict[str, Any]:
    """{"batch.prompts": 16, "seed": 0, ...}; empty for a run without a config."""
    return leaves(read_tree(run))


def read_tree(run: Run) -> dict[str, Any]:
    """config.yaml as it stands."""
    try:
        with open_stored(run.file("config.yaml")) as file:
            tree = load_yaml(file.read(LONGEST_TEXT + 1).decode("utf-8", "replace"))
    except FileNotFoundError as error:
        if not os.path.lexists(run.path / "config.yaml"):
            return {}
        raise Unreadable(str(error)) from error
    except (ConfigError, RecursionError) as error:
        raise Unreadable(f"config.yaml cannot be read: {error}") from error
    return tree if isinstance(tree, dict) else {}


def family(settings: Mapping[str, Any]) -> str:
    """The same for runs that differ only in their seed."""
    kept = {name: value for name, value in settings.items() if not within(name, NOT_THE_EXPERIMENT)}
    text = json.dumps(kept, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def table(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a setting: its value in each run, and whether they differ."""
    names = list(dict.fromkeys(name for run in runs for name in run))
    rows = []
    for name in names:
        values = [_shown(run[name]) if name in run else None for run in runs]
        rows.append({"name": name, "values": values, "differs": len(set(values)) > 1})
    return rows


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and value == NO_LIMIT:
        return "no limit"
    if isinstance(value, list) and value and all(map(_is_reward, value)):
        return ", ".join(_shown_reward(reward) for reward in value)
    return json.dumps(value, default=str)


def _is_reward(value: Any) -> bool:
    return isinstance(value, dict) and {"name", "weight"} <= value.keys()


def _shown_reward(reward: Mapping[str, Any]) -> str:
    """correct x 1.0 {"strict": true}"""
    options = reward.get("options")
    more = f" {json.dumps(options, default=str)}" if options else ""
    return f"{reward['name']} x {reward['weight']}{more}"
