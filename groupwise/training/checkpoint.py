"""Checkpoints that survive kill -9: written aside, fsynced, listed in a manifest, then renamed.

    checkpoints/step-000010/
      model/                  a Hugging Face folder, loadable anywhere; or the adapter alone
      optimizer.safetensors   moments (and fp32 masters) by parameter name; of N ranks each writes
                              some of them: optimizer-00001-of-0000N.safetensors ...
      reference.safetensors   only for a reference that cannot be made again
      state.json              step, data position, pending rollouts ...
      manifest.json           size and SHA-256 of every file above

A folder without a manifest, or whose files do not match it, is damaged: it is passed over with a
message and the one before it is used. Nothing here is pickled. Any number of ranks goes on from
what any other number wrote: no rank ever holds the whole optimizer state of a sharded model.
"""

import hashlib
import json
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from groupwise.distributed.world import World
from groupwise.errors import RunFolderError
from groupwise.policy.load import Policy
from groupwise.training.state import TrainState

log = logging.getLogger("groupwise")


def save_checkpoint(state: TrainState, root: pathlib.Path, keep: int) -> pathlib.Path:
    """Write checkpoints/step-N, then delete all but the newest `keep`. All ranks take part."""
    world = state.optimizer.world
    tensors = own_tensors(state.optimizer.state(), world)
    name = "optimizer.safetensors"
    if world.size > 1:
        name = f"optimizer-{world.rank + 1:05d}-of-{world.size:05d}.safetensors"

    def write(folder: pathlib.Path) -> None:
        save_model(state.policy, folder / "model")
        world.barrier()  # the folder is there: the others may write
        save_file(tensors, folder / name)
        _check_all(world, None)
        if state.reference is not None and state.reference.saved:
            weights = {k: v.cpu().contiguous() for k, v in state.reference.state().items()}
            save_file(weights, folder / "reference.safetensors")
        (folder / "state.json").write_text(json.dumps(state.numbers()))
        (folder / "manifest.json").write_text(json.dumps(_manifest(folder)))

    target = root / f"step-{state.step:06d}"
    if world.first:
        replace_folder(target, write)
        for old in sorted(root.glob("step-??????"))[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
    else:
        _write_beside(tensors, _aside(target) / name, world)
    world.barrier()
    return target


def own_tensors(tensors: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """Those that this rank writes. Each is put together in turn, and kept by one rank only."""
    mine: dict[str, Tensor] = {}
    for index, (name, tensor) in enumerate(tensors.items()):
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if index % world.size == world.rank:
            mine[name] = whole.detach().cpu().contiguous()
    return mine


def _write_beside(tensors: dict[str, Tensor], path: pathlib.Path, world: World) -> None:
    """What a rank other than the first does while that one writes the folder."""
    world.barrier()
    problem = None
    try:
        save_file(tensors, path)
    except OSError as error:
        problem = error.strerror or str(error)
    _check_all(world, problem)


def _check_all(world: World, problem: str | None) -> None:
    found = next(filter(None, world.gather(problem)), None)
    if found is not None:
        raise OSError(found) if world.first else RunFolderError(found)


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
    aside = _aside(target)
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
    state.optimizer.load(SavedTensors(folder.glob("optimizer*.safetensors")))
    reference = folder / "reference.safetensors"
    if state.reference is not None and reference.exists():
        state.reference.load(load_file(reference))
    state.load_numbers(json.loads((folder / "state.json").read_text()))


class SavedTensors(Mapping[str, Tensor]):
    """The tensors of several files under their names, each read when it is asked for."""

    def __init__(self, paths: Iterable[pathlib.Path]) -> None:
        self._files = [safe_open(path, "pt") for path in sorted(paths)]
        self._where = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        return self._where[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def _aside(target: pathlib.Path) -> pathlib.Path:
    return target.with_name(target.name + ".new")


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
