"""Files and folders that are written whole or not at all, and what a full disk says."""

import contextlib
import filecmp
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from safetensors import SafetensorError

from groupwise.errors import RunFolderError


@contextmanager
def writing(target: pathlib.Path) -> Iterator[None]:
    """A full disk, a missing permission or a broken device becomes one message with the fix."""
    try:
        yield
    except Exception as error:
        reason = why_not_written(error)
        if reason is None:
            raise
        raise RunFolderError(
            f"could not write {target}: {reason}. What was saved before is untouched; free some "
            "space (or make it writable) and run the same command again to go on from there"
        ) from error


def why_not_written(error: Exception) -> str | None:
    """What the operating system refused; None where the error is about something else.

    safetensors has an error of its own for it, and tokenizers raises a bare `Exception`.
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    bare = type(error) is Exception and "os error" in str(error)
    return str(error) if bare or isinstance(error, SafetensorError) else None


def write_whole(path: pathlib.Path, data: str | bytes) -> None:
    """Replace a file at once: it is the old one or the new one, whatever happens."""
    aside = aside_of(path)
    with writing(path):
        remove(aside)
        aside.write_bytes(data.encode() if isinstance(data, str) else data)
        os.replace(aside, path)


def replace_folder(target: pathlib.Path, write: Callable[[pathlib.Path], None]) -> None:
    """Make `target` what `write` writes, whole or not at all; what was there stays until then."""
    aside = aside_of(target)
    clear_leftovers(target)
    try:
        with writing(target):
            aside.mkdir(parents=True)
            write(aside)
            _sync(aside)
            if os.path.lexists(target):
                os.replace(target, _moved_away(target))
            os.replace(aside, target)
            _sync_folder(target.parent)
    finally:
        clear_leftovers(target)


def link_equal_files(folders: Sequence[pathlib.Path]) -> None:
    """Weights that lie in several of these folders under one name, byte for byte, are kept once.

    Hard links: each folder stays whole if the others are deleted. Where the file system has none,
    or nothing can be written, the copies stay.
    """
    for number, folder in enumerate(folders):
        for path in folder.glob("*.safetensors"):
            for other in (earlier / path.name for earlier in folders[:number]):
                with contextlib.suppress(OSError):
                    if other.is_file() and not other.samefile(path) and _equal(other, path):
                        _link(other, path)
                        break


def copy_model(folder: pathlib.Path, target: pathlib.Path) -> None:
    """A model's folder once more: its weights are hard links, copies where there are none."""

    def copy(path: str, place: str) -> None:
        if path.endswith(".safetensors"):
            with contextlib.suppress(OSError):
                os.link(path, place)
                return
        shutil.copyfile(path, place)

    shutil.copytree(folder, target, copy_function=copy, dirs_exist_ok=True)


def _link(other: pathlib.Path, path: pathlib.Path) -> None:
    aside = aside_of(path)
    remove(aside)
    try:
        os.link(other, aside)
        os.replace(aside, path)
    finally:
        remove(aside)


def _equal(one: pathlib.Path, other: pathlib.Path) -> bool:
    same_size = one.stat().st_size == other.stat().st_size
    return same_size and filecmp.cmp(one, other, shallow=False)


def clear_leftovers(target: pathlib.Path) -> None:
    """After a crash while `target` was replaced: put back what was there, drop what is half."""
    gone = _moved_away(target)
    remove(aside_of(target))
    if os.path.lexists(gone) and not os.path.lexists(target):
        os.replace(gone, target)
    remove(gone)


def remove(path: pathlib.Path) -> None:
    """Whatever is there: a folder, a file, a link; nothing where nothing is."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        path.unlink()


def set_aside(path: pathlib.Path) -> pathlib.Path:
    """Keep something damaged under another name: `metrics.jsonl.damaged`, then `.damaged-2`."""
    number, kept = 1, path.with_name(f"{path.name}.damaged")
    while os.path.lexists(kept):
        number += 1
        kept = path.with_name(f"{path.name}.damaged-{number}")
    with writing(kept):
        os.replace(path, kept)
    return kept


def aside_of(target: pathlib.Path) -> pathlib.Path:
    """Where it is written before it takes its place."""
    return target.with_name(f"{target.name}.new")


def _moved_away(target: pathlib.Path) -> pathlib.Path:
    return target.with_name(f"{target.name}.old")


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
