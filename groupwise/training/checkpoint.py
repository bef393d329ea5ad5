"""Checkpoints that survive kill -9: written aside, fsynced, listed in a manifest, then renamed.

    checkpoints/step-000010/
      model/                  a Hugging Face folder, loadable anywhere; or the adapter alone
      optimizer.safetensors   moments (and fp32 masters) by parameter name; of N ranks each writes
                              some of them: optimizer-00001-of-0000N.safetensors; more than half
                              a gigabyte goes on in ...-part-00002.safetensors and so on
      reference.safetensors   only for a reference that cannot be made again
      state.json              step, data position, pending rollouts, settings, what is above
      manifest.json           size and SHA-256 of every file above

A damaged one (damage.py) is put aside with a message and the one before it is used. Nothing here is
pickled. Any number of ranks goes on from what any other number wrote: no rank ever holds the whole
optimizer state of a sharded model.
"""

import json
import logging
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from groupwise.distributed.world import World
from groupwise.errors import RunFolderError
from groupwise.tracking.run import cannot_go_on
from groupwise.tracking.whole import (
    aside_of,
    clear_leftovers,
    remove,
    replace_folder,
    set_aside,
    why_not_written,
)
from groupwise.training.damage import (
    MANIFEST,
    STATE,
    find_damage,
    make_manifest,
    saved_contents,
    sealed,
)
from groupwise.training.optim import full_tensor
from groupwise.training.save_streamed import save_streamed
from groupwise.training.state import TrainState
from groupwise.training.tensor_files import write_files

log = logging.getLogger("groupwise")


def save_checkpoint(state: TrainState, root: pathlib.Path, keep: int) -> pathlib.Path:
    """Write checkpoints/step-N, then delete all but the newest `keep`. All ranks take part."""
    world, numbers = state.optimizer.world, state.numbers()

    def write(folder: pathlib.Path) -> None:
        save_model(state, folder / "model")
        world.barrier()  # the folder is there: the others may write
        _write_optimizer(state.optimizer.state(), folder, world)
        if state.reference is not None and state.reference.saved:
            weights = {k: v.cpu().contiguous() for k, v in state.reference.state().items()}
            save_file(weights, folder / "reference.safetensors")
        contents = saved_contents(folder)
        (folder / STATE).write_text(json.dumps(sealed({**numbers, "contents": contents})))
        (folder / MANIFEST).write_text(json.dumps(make_manifest(folder)))

    target = root / f"step-{state.step:06d}"
    if world.first:
        replace_folder(target, write)
        _delete_older(root, target, keep)
    else:
        join_save(state)
        world.barrier()
        _write_optimizer(state.optimizer.state(), aside_of(target), world)
    world.barrier()
    return target


def _delete_older(root: pathlib.Path, newest: pathlib.Path, keep: int) -> None:
    """All but `keep` up to the newest, and what was put aside damaged before the run got there."""
    whole = [path for path in sorted(root.glob("step-??????")) if path.name <= newest.name]
    damaged = [p for p in root.glob("step-??????.damaged*") if p.name[:11] <= newest.name]
    for path in whole[:-keep] + damaged:
        remove(path)


def _write_optimizer(tensors: Mapping[str, Tensor], folder: pathlib.Path, world: World) -> None:
    """What this rank writes of it. If one rank cannot, all stop."""
    stem = "optimizer"
    if world.size > 1:
        stem += f"-{world.rank + 1:05d}-of-{world.size:05d}"

    def path_of(number: int) -> pathlib.Path:
        return folder / f"{stem}{f'-part-{number + 1:05d}' if number else ''}.safetensors"

    problem = None
    try:
        write_files(_own_tensors(tensors, world), path_of)
    except Exception as error:
        problem = why_not_written(error)
        if problem is None:
            raise
    first = next(filter(None, world.gather(problem)), None)
    if first is not None:
        raise OSError(first) if world.first else RunFolderError(first)


def _own_tensors(tensors: Mapping[str, Tensor], world: World) -> Iterator[tuple[str, Tensor]]:
    """Those that this rank writes. Each is put together in turn, and kept by one rank only."""
    for index, (name, tensor) in enumerate(tensors.items()):
        whole = full_tensor(tensor)
        if index % world.size == world.rank:
            yield name, whole if whole is tensor else whole.cpu()


def save_model(state: TrainState, folder: pathlib.Path) -> None:
    """A standard Hugging Face folder: weights, config, tokenizer, generation config.

    Of a policy with an adapter, the adapter alone in PEFT's format, and the tokenizer. While rank 0
    writes weights that no rank has whole, the others `join_save`.
    """
    policy = state.policy
    if policy.adapter is not None:
        policy.adapter.save(folder)
    elif state.is_whole:
        policy.model.save_pretrained(folder)
    else:
        save_streamed(policy.model, state.weights(), folder)
    policy.tokenizer.save_pretrained(folder)


def join_save(state: TrainState) -> None:
    """What the other ranks do while rank 0 saves the model."""
    if not state.is_whole:
        for _ in state.weights():
            pass


def newest_checkpoint(root: pathlib.Path) -> pathlib.Path | None:
    """The newest checkpoint that is whole; damaged ones are named and put aside.

    None where none was ever saved. Where all of them are damaged the run's history would be
    written over from the start: that is refused.
    """
    if os.path.lexists(root) and not root.is_dir():
        raise RunFolderError(f"{root} is not a folder: move it away, checkpoints are kept there")
    for left in [*root.glob("step-??????.new"), *root.glob("step-??????.old")]:
        clear_leftovers(left.with_suffix(""))
    damaged: dict[pathlib.Path, str] = {}
    for folder in sorted(root.glob("step-??????"), reverse=True):
        damage = find_damage(folder)
        if damage is None:
            for other, reason in damaged.items():
                log.warning(
                    "checkpoint %s is damaged (%s) and kept as %s: using %s",
                    other.name,
                    reason,
                    set_aside(other).name,
                    folder.name,
                )
            return folder
        damaged[folder] = damage
    if damaged:
        named = "; ".join(f"{folder.name}: {reason}" for folder, reason in damaged.items())
        raise cannot_go_on(root.parent, f"all its checkpoints are damaged ({named})")
    return None


def load_into(state: TrainState, folder: pathlib.Path) -> None:
    """Fill everything but the policy's weights, which `load_policy(folder / "model")` has read."""
    saved = SavedTensors(folder.glob("optimizer*.safetensors"))
    _check_shapes(saved, state, folder)
    state.optimizer.load(saved)
    reference = folder / "reference.safetensors"
    if state.reference is not None and reference.exists():
        state.reference.load(load_file(reference))
    state.load_numbers(json.loads((folder / "state.json").read_text()))


def _check_shapes(saved: "SavedTensors", state: TrainState, folder: pathlib.Path) -> None:
    """Moments and masters must fit the weights: AdamW would only find out in its next step."""
    weights = dict(state.policy.model.named_parameters())
    for entry in saved:
        key, _, name = entry.partition(".")
        if key in ("master", "mean", "exp_avg", "exp_avg_sq"):
            wanted = list(weights[name].shape) if name in weights else "no weight of the model"
            if saved.shape(entry) != wanted:
                raise RunFolderError(
                    f"{folder} does not fit the model: {entry} is {saved.shape(entry)}, not "
                    f"{wanted}. Move that checkpoint away to go on from the one before it"
                )


class SavedTensors(Mapping[str, Tensor]):
    """The tensors of several files under their names, each read when it is asked for."""

    def __init__(self, paths: Iterable[pathlib.Path]) -> None:
        self._files = [safe_open(path, "pt") for path in sorted(paths)]
        self._where = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        return self._where[name].get_tensor(name)

    def shape(self, name: str) -> list[int]:
        return self._where[name].get_slice(name).get_shape()

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)
