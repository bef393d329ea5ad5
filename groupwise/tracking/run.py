"""A run folder: the whole truth about a run, and the only thing that viewers read.

config.yaml  inputs.json  metrics.jsonl  findings.jsonl  log.txt
rollouts/step-000001.jsonl.gz  rollouts/index.jsonl
eval/before.jsonl  eval/after.jsonl  eval/before_after.md
checkpoints/  best/  model/  events/  reward.png  report.html  summary.json
"""

import fcntl
import gzip
import hashlib
import json
import logging
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from pydantic import BaseModel, TypeAdapter

from groupwise.config import Config
from groupwise.errors import GroupwiseError, RunFolderError, shortened
from groupwise.recipe import parse, read_yaml, write_config
from groupwise.tracking.differences import differences
from groupwise.tracking.inputs import note_inputs
from groupwise.tracking.rollout_file import read_rollouts
from groupwise.tracking.whole import clear_leftovers, remove, set_aside, write_whole, writing
from groupwise.types import Group, group_from_json, json_line, to_json

# What a run that was killed before its first step was logged may have left.
OWN = re.compile(
    r"\.lock|config\.(yaml|tmp)|inputs\.json(\.new)?|(metrics|findings)\.jsonl(\.new)?|log\.txt(\.1)?"
    r"|events|eval|rollouts|checkpoints"
    r"|best\.new|evaluated(\.new)?|before-restart-\d+|.+\.damaged(-\d+)?"
)
# Which problems each stored step holds, with the lowest, mean and highest reward of their answers.
INDEX = "rollouts/index.jsonl"
METRICS, FINDINGS = "metrics.jsonl", "findings.jsonl"
_WRONG_SHAPE = (TypeError, KeyError, AttributeError, RecursionError)
SHOWN = ("loss", "reward")  # what every step's line has
BEFORE = "before-restart-"

log = logging.getLogger("groupwise")


class RunFolder:
    """Owns a folder for one process at a time: `with RunFolder(path, config) as run:`

    `shared`: files of others may lie in it too.
    """

    def __init__(self, path: pathlib.Path, config: Config, *, shared: bool = False) -> None:
        self.path = path
        self._shared = shared
        self.config = config
        self._is_new = not path.exists()
        self._lock = _locked(path)
        self.saved_every = config.checkpoint.every
        """`checkpoint.every` of the run so far."""
        self._claim()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @contextmanager
    def kept_if_begun(self) -> Iterator[None]:
        """A run that fails before its first step leaves no folder, unless one was there before."""
        try:
            yield
        except BaseException:
            if self._is_new and not self._has_begun():
                remove(self.path)
            raise

    @property
    def checkpoints(self) -> pathlib.Path:
        return self.path / "checkpoints"

    def weight_folders(self) -> list[pathlib.Path]:
        """Wherever the run keeps weights: some may be the same."""
        saved = sorted(self.checkpoints.glob("step-??????/model"))
        return [*saved, self.path / "model", self.path / "best"]

    def _claim(self) -> None:
        """Take an empty folder, or one that the same config made; refuse any other.

        A run that failed before its first step has nothing to lose: its folder is free again.
        """
        owned = self.path / "config.yaml"
        stored = _read_config(owned)
        begun = self._has_begun()
        names = [] if begun else [path.name for path in self.path.iterdir()]
        foreign = [name for name in names if not OWN.fullmatch(name)]
        if foreign and not self._shared:
            raise RunFolderError(
                f"{self.path} is not empty and is not a run folder (it holds {foreign[0]}); "
                "give --out an empty or new folder"
            )
        if begun:
            before = _settings_in_checkpoints(self.checkpoints) or stored
            if isinstance(before, str):
                raise cannot_go_on(self.path, f"config.yaml {before}, and no checkpoint has it")
            changed = differences(before, self.config)
            if changed:
                raise RunFolderError(
                    f"{self.path} belongs to a run with other settings: {'; '.join(changed)}. "
                    "Use the same settings to resume it, or give another --out; --restart begins "
                    "anew and keeps what is there"
                )
            self.saved_every = before.checkpoint.every
            if not isinstance(stored, str) and differences(stored, before):
                stored = "is not what the checkpoints were made with"
            if isinstance(stored, str):
                log.warning("%s %s: it is written again", owned, stored)
        for name in ("best", "model", "evaluated"):
            clear_leftovers(self.path / name)
        if isinstance(stored, str) and os.path.lexists(owned):
            set_aside(owned)
        with writing(owned):
            write_config(self.config, owned)
        note_inputs(self.path, self.config, begun=begun)

    def _has_begun(self) -> bool:
        """Whether a step left something behind."""
        names = [METRICS, "checkpoints/step-*"]
        if (self.path / "config.yaml").exists():
            names += ["rollouts/step-*", "best", "model", "summary.json"]
        paths = [path for name in names for path in self.path.glob(name) if path.exists()]
        return any(path.is_dir() or path.stat().st_size for path in paths)

    def check_start(self, newest: pathlib.Path | None) -> None:
        """Refuse to begin from the start where a checkpoint must have been: someone took it."""
        steps = [line["step"] for line in _mended(self.path / METRICS, _is_metrics)[0]]
        if newest is None and steps and 0 < self.saved_every < steps[-1]:
            raise cannot_go_on(
                self.path, f"metrics.jsonl has {steps[-1]} steps and there is no checkpoint"
            )

    def rewind(self, step: int, logged: int | None = None) -> None:
        """Drop what was logged after `step`, where the run goes on from; of metrics what was logged
        after step `logged`, where the lines of later ones are yet to come."""
        logged = step if logged is None else logged
        logs = {METRICS: (_is_metrics, logged), FINDINGS: (_has_step, logged)}
        if (self.path / INDEX).exists():
            logs[INDEX] = (_has_step, step)
        for name, (is_right, last) in logs.items():
            path = self.path / name
            lines, whole = _mended(path, is_right)
            if not whole:
                log.warning("%s was damaged: it is kept as %s", path, set_aside(path).name)
            kept = [line for line in lines if line["step"] <= last]
            write_whole(path, "".join(json.dumps(line) + "\n" for line in kept))
            if name == METRICS and len(kept) < last:
                log.warning(
                    "%s lacks %d of %d steps: curves have a gap", path, last - len(kept), last
                )
        for path in (self.path / "rollouts").glob("step-??????.jsonl.*"):
            if path.name.endswith(".new") or path.name[5:11] > f"{step:06d}":
                remove(path)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        path = self.path / METRICS
        with writing(path), path.open("a") as file:
            file.write(json.dumps(metrics) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def log_rollouts(self, step: int, groups: Sequence[Group]) -> None:
        """Every answer with its scores and advantage, one group a line."""
        path = rollouts_file(self.path, step)
        lines = b"".join(json_line(group) for group in groups)
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            write_whole(path, gzip.compress(lines, compresslevel=1, mtime=0))
            with (self.path / INDEX).open("a") as file:
                file.write(json.dumps(_index_line(step, groups)) + "\n")
        keep = self.config.tracking.keep_rollouts
        for old in stored_steps(self.path)[:-keep] if keep else ():
            remove(rollouts_file(self.path, old))

    def log_evaluation(self, moment: str, problems: Sequence[Mapping[str, Any]]) -> None:
        """What each test problem came to, `before` or `after` training, one a line."""
        path = self.path / "eval" / f"{moment}.jsonl"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
        lines = (json.dumps(line, ensure_ascii=True) + "\n" for line in problems)
        write_whole(path, "".join(lines))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_whole(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")


def _locked(path: pathlib.Path) -> IO[bytes]:
    """The folder's lock, held until it is closed or this process ends."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.fdopen(os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC), "r+b", 0)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunFolderError(f"{path} is in use by another run; give --out another") from None
    except OSError as error:
        raise RunFolderError(f"cannot use {path} as a run folder: {error.strerror}") from error
    return lock


def restart(path: pathlib.Path) -> None:
    """Move all that a run left in its folder into before-restart-1 (2, ...) inside it."""
    if not path.exists():
        return
    with _locked(path):
        there = [p for p in path.iterdir() if p.name != ".lock" and not p.name.startswith(BEFORE)]
        keep_earlier_run(path, there)


def keep_earlier_run(path: pathlib.Path, entries: Sequence[pathlib.Path]) -> None:
    """Move these entries of its folder into before-restart-1 (2, ...) inside it, if a run is
    among them."""
    if not {"config.yaml", METRICS, "checkpoints"} & {entry.name for entry in entries}:
        return
    number = 1
    while (kept := path / f"{BEFORE}{number}").exists():
        number += 1
    with writing(kept):
        kept.mkdir()
        for entry in entries:
            os.replace(entry, kept / entry.name)
    log.info("%s starts over; what was there is in %s", path, kept)


def cannot_go_on(path: pathlib.Path, reason: str) -> RunFolderError:
    return RunFolderError(
        f"cannot go on with {path}: {reason}. To train from the start would write over its metrics "
        "and answers. Put the files back from a copy; or start over with `groupwise train ... "
        f"--restart`, which keeps all that is there in {path}/{BEFORE}1; or give another --out"
    )


def _read_config(path: pathlib.Path) -> Config | str:
    """A run's settings, or in a few words why there are none."""
    if not os.path.lexists(path):
        return "is missing"
    if not path.is_file():
        return "is not a file"
    try:
        settings = read_yaml(path)
        return parse(settings) if settings else "is empty"
    except (GroupwiseError, OSError, ValueError, RecursionError) as error:
        return f"cannot be read ({str(error)[:200]})"


def _settings_in_checkpoints(folder: pathlib.Path) -> Config | None:
    """The settings that the newest checkpoint with a whole state.json was made with."""
    for state in sorted(folder.glob("step-??????/state.json"), reverse=True):
        try:
            if not state.is_file() or not (state.parent / "manifest.json").is_file():
                continue
            manifest = json.loads((state.parent / "manifest.json").read_text())
            data = state.read_bytes()
            if manifest["state.json"]["sha256"] == hashlib.sha256(data).hexdigest():
                return parse(json.loads(data)["settings"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return None


def _is_metrics(line: Any) -> bool:
    return _has_step(line) and all(type(line.get(name)) in (int, float) for name in SHOWN)


def _has_step(line: Any) -> bool:
    return isinstance(line, dict) and type(line.get("step")) is int and line["step"] > 0


def _mended(
    path: pathlib.Path, is_right: Callable[[Any], bool]
) -> tuple[list[dict[str, Any]], bool]:
    """The lines that can be used, and whether those are all. A torn last one is no damage."""
    if not path.is_file():
        return [], not os.path.lexists(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    *lines, last = text.split("\n")
    good: list[dict[str, Any]] = []
    for line in [*lines, last]:
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if is_right(value):
            good.append(value)
    return good, len(good) >= len(lines)


def _index_line(step: int, groups: Sequence[Group]) -> dict[str, Any]:
    rows: list[list[Any]] = []
    for group in groups:
        known = [reward for reward in group.rewards if reward is not None]
        numbers = [min(known), sum(known) / len(known), max(known)] if known else [None] * 3
        rows.append([group.problem.id, *numbers])
    return {"step": step, "groups": rows}


class _Summary(BaseModel):  # what every summary.json has
    status: str
    steps: int
    before: dict[str, float]
    after: dict[str, float]


def read_summary(folder: pathlib.Path) -> dict[str, Any] | None:
    """The summary of a finished run; None while there is training left to do."""
    path = folder / "summary.json"
    try:
        summary = json.loads(path.read_text()) if path.is_file() else None
        _Summary.model_validate(summary, strict=True)
    except (OSError, ValueError, RecursionError):
        return None
    return summary


def read_metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The steps logged so far."""
    return read_lines(folder / "metrics.jsonl")


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """A file of JSON Lines, none if it is not there; a last line torn by a crash is left out."""
    lines = path.read_text().splitlines() if path.is_file() else []
    steps = []
    for line in lines:
        try:
            steps.append(json.loads(line))
        except ValueError:
            break
    return steps


def run_folder(path: str | pathlib.Path) -> pathlib.Path:
    """The path of a run, or an error where there is none."""
    folder = pathlib.Path(path)
    if not (folder / "config.yaml").is_file():
        raise RunFolderError(f"{path} is not a run folder: it has no config.yaml")
    return folder


def rollouts_file(folder: pathlib.Path, step: int) -> pathlib.Path:
    return folder / "rollouts" / f"step-{step:06d}.jsonl.gz"


def stored_steps(folder: pathlib.Path) -> list[int]:
    """The steps whose answers are stored, ascending."""
    files = (folder / "rollouts").glob("step-??????.jsonl.gz")
    return sorted(int(path.name[5:11]) for path in files if path.is_file())  # no pipes


def stored_groups(folder: pathlib.Path, step: int) -> list[Group]:
    """The groups of a stored step, checked: whoever made the folder may be a stranger."""
    path = rollouts_file(folder, step)
    try:
        read = [group_from_json(group) for group in read_rollouts(path)]
        groups = TypeAdapter(list[Group]).validate_python([to_json(group) for group in read])
        for group in groups:
            per_answer = [group.rewards, group.advantages, *group.scores.values()]
            uneven = {len(group.completions)} != {len(values) for values in per_answer}
            if uneven or any(len(c.tokens) != len(c.logprobs) for c in group.completions):
                raise ValueError("a group has not one value for each of its answers or tokens")
    except (OSError, EOFError, zlib.error, ValueError, *_WRONG_SHAPE) as error:
        reason = shortened(" ".join(str(error).split()))
        raise RunFolderError(f"{path} cannot be read: {type(error).__name__}: {reason}") from error
    return groups
