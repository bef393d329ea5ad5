"""A run's settings as flat names, to lay runs beside each other and to tell which differ in seed.

Read as plain YAML, not as a Config: a run of another version has names that this one does not know.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from groupwise.config.flat import leaves, within
from groupwise.view.catalog import Run
from groupwise.view.stored_group import Unreadable

LONGEST_FILE = 200_000
DEEPEST = 30
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one where it was built
# Where two runs may differ and still be the same experiment with another seed.
NOT_THE_EXPERIMENT = ("seed", "tracking", "checkpoint", "engine.max_batch")


def read_settings(run: Run) -> dict[str, Any]:
    """{"batch.prompts": 16, "seed": 0, ...}; empty for a run without a config."""
    return leaves(read_tree(run))


def read_tree(run: Run) -> dict[str, Any]:
    """config.yaml as it stands."""
    try:
        with run.file("config.yaml").open("rb") as file:
            text = file.read(LONGEST_FILE + 1).decode("utf-8", "replace")
    except FileNotFoundError:
        return {}
    if len(text) > LONGEST_FILE:
        raise Unreadable(f"config.yaml is longer than {LONGEST_FILE} characters")
    try:
        _check(text)
        tree = yaml.load(text, Loader=LOADER)
        return tree if isinstance(tree, dict) else {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(f"config.yaml cannot be read: {str(error)[:200]}") from error


def _check(text: str) -> None:
    """Refuse references, a few lines of which can stand for billions of values, and deep nests."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("references (*name) are not read")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST:
            raise yaml.YAMLError(f"it is nested more than {DEEPEST} deep")


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
    return value if isinstance(value, str) else json.dumps(value, default=str)
