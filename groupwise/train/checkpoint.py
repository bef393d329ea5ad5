"""Checkpoints that survive kill -9: written aside, fsynced, listed in a manifest, then renamed.

    checkpoints/step-000010/
      model/                  a Hugging Face folder, loadable anywhere; or the adapter alone
      optimizer.safetensors   moments (and fp32 masters) by parameter name
      reference.safetensors   only for a reference that cannot be made again
      state.json              step, data position, pending rollouts ...
      manifest.json           size and SHA-256 of every file above

A folder without a manifest, or whose files do not match it, is damaged: it is passed over with a
message and the one before it is used. Nothing here is pickled.
"""

import hashlib
import json
import logging
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from safetensors.torch import load_file, save_file

from groupwise.errors import RunFolderError
from groupwise.policy.load import Policy
from groupwise.train.state import TrainState

log = logging.getLogger("groupwise")


def save_checkpoint(state: TrainState, root: pathlib.Path, keep: int) -> pathlib.Path:
    """Write checkpoints/step-N, then delete all but the newest `keep`."""

    def write(folder: pathlib.Path) -> None:
        save_model(state.policy, folder / "model")
        tensors = {k: v.detach().cpu().contiguous() for k, v in state.optimizer.state().items()}
        save_file(tensors, folder / "optimizer.safetensors")
        if state.reference is not None and state.reference.saved:
            weights = {k: v.cpu().contiguous() for k, v in state.reference.state().items()}
            save_file(weights, folder / "reference.safetensors")
        (folder / "state.json").write_text(json.dumps(state.numbers()))
        (folder / "manifest.json").write_text(json.dumps(_manifest(folder)))

    target = root / f"step-{state.step:06d}"
    replace_folder(target, write)
    for old in sorted(root.glob("step-??????"))[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def save_model(policy: Policy, folder: pathlib.Path) -> None:
    """A standard Hugging Face folder: weights, config, tokenizer, generation config.

    Of a policy with an adapter, the adapter alone in PEFT's format, and the tokenizer.
    """
    if policy.adapter is None:
        policy.model.save_pretrained(folder)
    else:
        policy.adapter.save(folder)
    policy.tokenizer.save_pretrained(folder)


def replace_folder(target: pathlib.Path, write: Callable[[pathlib.Path], None]) -> None:
    """Make `target` what `write` writes, whole or not at all; what was there stays until then."""
    aside = target.with_name(target.name + ".new")
    gone = target.with_name(target.name + ".old")
    _recover(target)
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        write(aside)
        _sync(aside)
        if target.exists():
            os.replace(target, gone)
        os.replace(aside, target)
        _sync_folder(target.parent)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        _recover(target)
        raise RunFolderError(
            f"could not write {target}: {error.strerror or error}. What was saved before is "
            "untouched; free some space and run the same command again to go on from there"
        ) from error
    shutil.rmtree(gone, ignore_errors=True)


def newest_checkpoint(root: pathlib.Path) -> pathlib.Path | None:
    """The newest checkpoint that is whole; damaged ones are named and passed over."""
    for replaced in root.glob("step-??????.old"):
        _recover(replaced.with_suffix(""))
    for folder in sorted(root.glob("step-??????"), reverse=True):
        damage = find_damage(folder)
        if damage is None:
            return folder
        log.warning("checkpoint %s is damaged (%s): using the one before it", folder.name, damage)
    return None


def find_damage(folder: pathlib.Path) -> str | None:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        for name, expected in manifest.items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected["size"]:
                return f"{name} has {path.stat().st_size} bytes, not {expected['size']}"
            if _digest(path) != expected["sha256"]:
                return f"{name} does not match its checksum"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"no readable manifest: {error}"
    return None


def load_into(state: TrainState, folder: pathlib.Path) -> None:
    """Fill everything but the policy's weights, which `load_policy(folder / "model")` has read."""
    state.optimizer.load(load_file(folder / "optimizer.safetensors"))
    reference = folder / "reference.safetensors"
    if state.reference is not None and reference.exists():
        state.reference.load(load_file(reference))
    state.load_numbers(json.loads((folder / "state.json").read_text()))


def _recover(target: pathlib.Path) -> None:
    """After a crash between the two renames of a replacement, what was there before is put back."""
    gone = target.with_name(target.name + ".old")
    if gone.exists() and not target.exists():
        os.replace(gone, target)
    shutil.rmtree(gone, ignore_errors=True)


def _manifest(folder: pathlib.Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _digest(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: pathlib.Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            _sync_folder(path)
    _sync_folder(folder)


def _sync_folder(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
