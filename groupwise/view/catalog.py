"""Which run folders are shown, and the ids that stand for them in addresses.

No path ever comes from a request: an id is looked up, and the file names are ours. A link inside a
run folder that leads out of it is not followed.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from groupwise.errors import RunFolderError

DEFAULT_ROOT = pathlib.Path("runs")
DEEPEST = 3
MOST_RUNS = 1000


@dataclass(frozen=True)
class Run:
    """Run(id="3f9a61c2d4", name="demo", path=Path("runs/demo"))"""

    id: str
    name: str
    path: pathlib.Path

    def file(self, *parts: str) -> pathlib.Path:
        """A file of this run. One that is a link to elsewhere, or to itself, counts as missing."""
        path = self.path.joinpath(*parts)
        try:
            inside = path.resolve().is_relative_to(self.path.resolve())
        except (OSError, RuntimeError):  # RuntimeError: a link that leads back to itself
            inside = False
        if not inside:
            raise FileNotFoundError(f"{'/'.join(parts)} is outside the run folder")
        return path


class Catalog:
    """The runs under the given folders; new ones appear when they are looked for again."""

    def __init__(self, paths: Sequence[pathlib.Path]) -> None:
        self._roots = list(paths) or [DEFAULT_ROOT]
        for root in paths:
            if not root.is_dir():
                raise RunFolderError(
                    f"there is no folder {root}: name a run folder, or one of runs"
                )
        self._runs: dict[str, Run] = {}
        if not self.scan():
            where = " or ".join(str(root) for root in self._roots)
            raise RunFolderError(
                f"no run under {where}: make one with `groupwise train`, or name its folder"
            )

    def scan(self) -> list[Run]:
        """Every run, in the order of the folders given and then by name."""
        runs: dict[str, Run] = {}
        for root in self._roots:
            for path in _run_folders(root):
                id = run_id(path)
                runs.setdefault(id, Run(id, _name(path, root), path))
                if len(runs) == MOST_RUNS:
                    break
        self._runs = runs
        return list(runs.values())

    def get(self, id: str) -> Run | None:
        return self._runs.get(id)


def run_id(path: pathlib.Path) -> str:
    """The same for a folder every time, and nothing that can be read back as a path."""
    return hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:10]


def is_run(path: pathlib.Path) -> bool:
    """Whatever the files are: a run whose files are damaged is shown as such."""
    return any(os.path.lexists(path / name) for name in ("config.yaml", "metrics.jsonl"))


def _run_folders(root: pathlib.Path) -> Iterator[pathlib.Path]:
    if is_run(root):
        yield root
        return
    for folder, inner, _ in os.walk(root):
        path = pathlib.Path(folder)
        if path != root and is_run(path):
            inner.clear()
            yield path
        elif len(path.relative_to(root).parts) >= DEEPEST:
            inner.clear()
        else:
            inner[:] = sorted(name for name in inner if not name.startswith("."))


def _name(path: pathlib.Path, root: pathlib.Path) -> str:
    return str(path.relative_to(root)) if path != root else path.resolve().name
