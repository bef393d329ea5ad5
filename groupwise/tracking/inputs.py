"""What a run reads beside its settings: files and folders that may change between two starts.

inputs.json has a digest of each. A change cannot be undone here, so it is said, and the run goes
on with what is there now.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import pathlib

from groupwise.config import Config
from groupwise.config.flat import leaves
from groupwise.tracking.whole import write_whole

INPUTS = "inputs.json"
READ_WHOLE = 2**26
"""Of larger files the size and some blocks count: other weights differ in all of them."""
BLOCKS, BLOCK = 64, 2**20
MOST_FILES, MOST_BYTES = 20_000, 2**32
"""Of a folder: who names `/` as a model should hear so before all of it was read."""
KEPT_OUT = (".png", ".html", ".md", ".lock")

log = logging.getLogger("groupwise")


def note_inputs(folder: pathlib.Path, config: Config, *, begun: bool) -> None:
    """Store the digests; of a run that has begun, name what is not as it was."""
    path = folder / INPUTS
    now = {name: digest(file) for name, file in input_paths(config).items()}
    before = _stored(path) if begun else {}
    changed = [name for name, was in before.items() if now.get(name) != was]
    if changed:
        log.warning(
            "%s: what the run reads is not what it was when it last started: %s. It goes on with "
            "what is there now, so it is no longer one run that could be repeated",
            folder,
            ", ".join(changed),
        )
    if now != before:
        write_whole(path, json.dumps(now, indent=1) + "\n")


def input_paths(config: Config) -> dict[str, pathlib.Path]:
    """The local files and folders that settings name: {"task.path=data.jsonl": Path(...)}"""
    settings = config.model_dump(mode="json")
    named = {name: settings[name] for name in ("task", "environment", "algorithm", "engine")}
    named |= {"model": config.model, "optimizer": {"kind": config.optimizer.kind}}
    values = {key: value for key, value in leaves(named).items() if isinstance(value, str)}
    values |= {f"rewards.{reward.name}": reward.name for reward in config.rewards}
    paths: dict[str, pathlib.Path] = {}
    for key, value in values.items():
        for text in (value.removeprefix("model:"), value.rpartition(":")[0]):
            place = pathlib.Path(os.path.expanduser(text)) if text and "\0" not in text else None
            if place is not None and len(text) < 1000 and place.exists():
                paths[key if value in key else f"{key}={value}"] = place
                break
    return paths


def digest(place: pathlib.Path) -> str:
    """Of a file's content, or of those in a folder; of a run folder, of its model."""
    place = place / "model" if (place / "model").is_dir() else place
    inside = (path for path in place.rglob("*") if path.is_file())
    files = [place] if place.is_file() else sorted(itertools.islice(inside, MOST_FILES))
    total, left = hashlib.blake2b(digest_size=16), MOST_BYTES
    for file in files:
        if file.suffix not in KEPT_OUT and not file.name.startswith("."):
            name = file.name if file == place else str(file.relative_to(place))
            with contextlib.suppress(OSError):  # what cannot be read is not read by the run
                size = file.stat().st_size
                total.update(f"{name} {size}\n".encode(errors="replace"))
                left -= min(size, READ_WHOLE)
                if left > 0:
                    _add(file, size, total)
    return total.hexdigest()


def _add(file: pathlib.Path, size: int, total: "hashlib.blake2b") -> None:
    with file.open("rb") as opened:
        if size <= READ_WHOLE:
            total.update(opened.read(size))  # what has none, in /proc, may keep us waiting
            return
        for block in range(BLOCKS):
            opened.seek(block * (size - BLOCK) // (BLOCKS - 1))
            total.update(opened.read(BLOCK))


def _stored(path: pathlib.Path) -> dict[str, str]:
    try:
        known = json.loads(path.read_text()) if os.path.isfile(path) else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
