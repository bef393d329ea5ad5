"""What is wrong with a stored checkpoint, if anything: asked before any of it is loaded.

The manifest has the size and SHA-256 of every file. Beside that `state.json` says what was saved:
the tensors of each safetensors file by type and shape, the hash of every other file, and its own
hash. So missing or replaced files are noticed even where the manifest was rewritten to fit.
"""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from safetensors import SafetensorError, safe_open

from groupwise.errors import type_name
from groupwise.training.tensor_files import WRITERS

MANIFEST, STATE = "manifest.json", "state.json"
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    SafetensorError,
)


def find_damage(folder: pathlib.Path) -> str | None:
    """What is wrong with it, in a few words; None for a checkpoint that is whole."""
    try:
        manifest = _object(folder / MANIFEST)
        return (
            _unlisted(folder, manifest)
            or _changed(folder, manifest)
            or _wrong_state(folder, _object(folder / STATE))
        )
    except _UNREADABLE as error:
        return f"it cannot be read: {type(error).__name__}: {str(error)[:200]}"


def make_manifest(folder: pathlib.Path) -> dict[str, Any]:
    files = {name: path for name, path in _files(folder).items() if name != MANIFEST}
    digests = _digests(files)
    return {
        name: {"size": path.stat().st_size, "sha256": digests[name]} for name, path in files.items()
    }


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The content of state.json, with its own hash."""
    bare = {name: value for name, value in state.items() if name != "sha256"}
    text = json.dumps(bare, sort_keys=True)
    return {**bare, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def saved_contents(folder: pathlib.Path) -> dict[str, Any]:
    """What each file holds: of tensors their types and shapes, else a hash."""
    return {
        name: _tensors(path) if name.endswith(".safetensors") else _digest(path)
        for name, path in _files(folder).items()
        if name not in (MANIFEST, STATE)
    }


def _unlisted(folder: pathlib.Path, manifest: Mapping[str, Any]) -> str | None:
    """Files that the manifest does not list: a loader might read them as part of the model."""
    names = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if not path.name.startswith(".") and (path.is_symlink() or not path.is_dir())
    }
    extra = sorted(names - {MANIFEST, *manifest})
    return f"{extra[0]} is not in its manifest" if extra else None


def _changed(folder: pathlib.Path, manifest: Mapping[str, Any]) -> str | None:
    for name, expected in manifest.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != expected["size"]:
            return f"{name} has {path.stat().st_size} bytes, not {expected['size']}"
    digests = _digests({name: folder / name for name in manifest})
    changed = (n for n, expected in manifest.items() if digests[n] != expected["sha256"])
    return next((f"{name} does not match its checksum" for name in changed), None)


def _wrong_state(folder: pathlib.Path, state: dict[str, Any]) -> str | None:
    """Whether state.json was changed, or says something else than what is there."""
    if f"step-{state['step']:06d}" != folder.name:
        return f"{STATE} is of step {state['step']}"
    if state != sealed(state):
        return f"{STATE} was changed"
    for name, content in state["contents"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if isinstance(content, str):
            if _digest(path) != content:
                return f"{name} is not the one that was saved"
        elif (difference := _other_tensors(_tensors(path), content)) is not None:
            return f"{name}: {difference}"
    return None


def _other_tensors(there: Mapping[str, Any], saved: Mapping[str, Any]) -> str | None:
    for name in saved.keys() | there.keys():
        if name not in there:
            return f"{name} is missing"
        if name not in saved:
            return f"{name} was not saved"
        if there[name] != saved[name]:
            return f"{name} is {there[name]}, not {saved[name]}"
    return None


def _tensors(path: pathlib.Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: [s.get_dtype(), *s.get_shape()] for name, s in slices.items()}


def _files(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path for path in paths}


def _object(path: pathlib.Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"there is no file {path.name}")
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise TypeError(f"{path.name} holds {type_name(data)}")
    return data


def _digests(files: Mapping[str, pathlib.Path]) -> dict[str, str]:
    """The hash of each file, by several threads: one reads only a gigabyte a second."""
    with ThreadPoolExecutor(WRITERS, "digest") as pool:
        return dict(zip(files, pool.map(_digest, files.values()), strict=True))


def _digest(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
