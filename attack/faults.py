"""A layer under a training run that strikes at the n-th call of a function or write of a file.

In a forked process: `with_fault(folder, {"point": ["os:replace", 3], "action": "ENOSPC"})`. Files
that are written under `folder` count as the points `open` (created, still empty), `write` (half of
the data is there) and `safetensors` (all of it in one call of a library).
"""

import builtins
import errno
import importlib
import io
import json
import os
import pathlib
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from safetensors import SafetensorError

WRITES = ("os:replace", "os:fsync", "os:mkdir", "open", "write", "safetensors")
CALLS = (
    "groupwise.training.collect:sample_group",
    "groupwise.training.collect:score_groups",
    "groupwise.training.in_flight:sample_group",
    "groupwise.load:score_groups",
    "groupwise.training.step:annotate",
    "groupwise.training.step:assign_over_ranks",
    "groupwise.training.update:policy_loss",
    "groupwise.training.optim:learning_rate",
    "groupwise.tracking.run:RunFolder.log_rollouts",
    "groupwise.tracking.run:RunFolder.log_metrics",
    "groupwise.tracking.run:RunFolder.rewind",
    "groupwise.tracking.whole:_sync_folder",
    "groupwise.training.checkpoint:save_model",
    "groupwise.training.checkpoint:make_manifest",
    "groupwise.training.checkpoint:_delete_older",
    "groupwise.training.api:load_parts",
    "groupwise.training.api:model_card",
    "groupwise.training.api:save_curve",
    "groupwise.training.api:link_equal_files",
    "groupwise.tracking.run:RunFolder.write_summary",
)
SIGNALS = ("KILL", "TERM", "INT")
ERRORS = ("ENOSPC", "EIO", "EROFS", "EDQUOT")


class Layer:
    """Counts calls by point; at one of them it does what it was told."""

    def __init__(self, folder: pathlib.Path, fault: dict[str, Any] | None) -> None:
        self.folder, self.fault = str(folder), fault or {}
        self.counts: Counter[str] = Counter()
        self.shift = 0.0

    def reached(self, point: str, path: object = None) -> bool:
        """Count it; whether it is the one. Signals strike here, errors where the caller raises."""
        self.counts[point] += 1
        if [point, self.counts[point]] != self.fault.get("point"):
            return False
        action = self.fault["action"]
        if action in SIGNALS:
            os.kill(os.getpid(), signal.Signals[f"SIG{action}"])
            time.sleep(0.01)
        elif action == "slow":
            time.sleep(1.5)
        elif action == "clock":
            self.shift = self.fault["seconds"]
        else:
            return True
        return False

    def error(self, path: object) -> OSError:
        number = getattr(errno, self.fault["action"])
        return OSError(number, os.strerror(number), str(path))

    def ours(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(self.folder)


class _File:
    """A file whose writes may be cut in half."""

    def __init__(self, file: Any, layer: Layer, path: object) -> None:
        self._file, self._layer, self._path = file, layer, path

    def write(self, data: Any) -> int:
        layer = self._layer
        last = layer.fault.get("point") == ["write", layer.counts["write"] + 1]
        if last:
            self._file.write(data[: len(data) // 2])
            self._file.flush()
        if layer.reached("write", self._path):
            raise layer.error(self._path)
        return self._file.write(data[len(data) // 2 :] if last else data)

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def with_fault(folder: pathlib.Path, fault: dict[str, Any] | None) -> Layer:
    """Put the layer under this process, for good."""
    layer = Layer(folder, fault)
    for point in ("os:replace", "os:fsync", "os:mkdir", *CALLS):
        _count(point, layer)
    _count_files(layer)
    _count_safetensors(layer)
    now = time.time
    time.time = lambda: now() + layer.shift
    return layer


def _count(point: str, layer: Layer) -> None:
    module, _, path = point.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original, everywhere = getattr(owner, name), module != "os"

    def counted(*args: Any, **more: Any) -> Any:
        counts = everywhere or isinstance(args[0], int) or layer.ours(args[0])
        if counts and layer.reached(point):
            raise layer.error(args[0])
        return original(*args, **more)

    setattr(owner, name, counted)


def _count_files(layer: Layer) -> None:
    original = builtins.open

    def opened(file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        made = original(file, mode, *args, **more)
        if not set(mode) & set("wax+") or not layer.ours(file):
            return made
        if layer.reached("open", file):
            made.close()
            raise layer.error(file)
        return _File(made, layer, file)

    builtins.open = io.open = opened  # pathlib has it from io


def _count_safetensors(layer: Layer) -> None:
    import safetensors.torch as library

    from groupwise.training import checkpoint

    original: Callable[..., Any] = library.save_file

    def saved(tensors: Any, path: Any, *args: Any, **more: Any) -> None:
        if layer.ours(path) and layer.reached("safetensors", path):
            reason = os.strerror(getattr(errno, layer.fault["action"]))
            raise SafetensorError(f"Error while serializing: I/O error: {reason} (os error 28)")
        original(tensors, path, *args, **more)

    library.save_file = checkpoint.save_file = saved


def note_counts(layer: Layer, path: pathlib.Path) -> None:
    path.write_text(json.dumps(layer.counts))
