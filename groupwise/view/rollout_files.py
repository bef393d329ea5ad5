"""The stored answers of a run: one compressed file a step, opened one at a time, read by line."""

import gzip
import os
import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator

from groupwise.tracking.rollout_file import LARGEST_RATIO, most_unpacked
from groupwise.view.catalog import Run
from groupwise.view.stored_file import open_stored
from groupwise.view.stored_group import StoredGroup, Unreadable, stored_group

NAME = re.compile(r"step-(\d{6,12})\.jsonl\.gz", re.ASCII)
LONGEST_GROUP = 64_000_000
MOST_CONTAINERS = 2_000_000
"""Lists and mappings in one group: a small one takes twenty times its bytes in memory."""
MOST_GROUPS = 50_000
KEPT_BYTES = 64_000_000


class RolloutFiles:
    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._listed: tuple[int, list[int]] = (-1, [])
        # The lines shown last, so that the tokens of a card need no second reading of its step.
        self._kept: OrderedDict[tuple[int, int, int], bytes] = OrderedDict()
        self._kept_bytes = 0

    def steps(self) -> list[int]:
        """Steps that have stored answers, ascending; listed again only when one was added."""
        try:
            folder = self._run.file("rollouts")
            changed = folder.stat().st_mtime_ns
            if self._listed[0] != changed:
                names = (NAME.fullmatch(entry.name) for entry in os.scandir(folder))
                self._listed = (changed, sorted(int(name[1]) for name in names if name))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return self._listed[1]

    def lines(self, step: int) -> Iterator[bytes]:
        """The groups of a step, unparsed, in stored order."""
        try:
            path = self._run.file("rollouts", f"step-{step:06d}.jsonl.gz")
            with open_stored(path) as stored, gzip.open(stored, "rb") as file:
                status = os.fstat(stored.fileno())
                left = most_unpacked(status.st_size)
                index = 0
                while line := file.readline(min(LONGEST_GROUP, left)):
                    left -= len(line)
                    _check_size(step, index, line, left)
                    self._keep((step, status.st_mtime_ns, index), line)
                    yield line
                    index += 1
        except FileNotFoundError:
            raise Unreadable(f"step {step} has no stored answers") from None
        except (OSError, EOFError, zlib.error) as error:
            raise Unreadable(f"step {step}: its file is damaged ({error})") from error

    def groups(self, step: int) -> Iterator[StoredGroup]:
        for index, line in enumerate(self.lines(step)):
            yield stored_group(line, index)

    def group(self, step: int, index: int) -> StoredGroup:
        kept = self._find(step, index)
        if kept is not None:
            return stored_group(kept, index)
        for place, line in enumerate(self.lines(step)):
            if place == index:
                return stored_group(line, index)
        raise Unreadable(f"step {step} has no group {index}")

    def _keep(self, key: tuple[int, int, int], line: bytes) -> None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return
            self._kept[key] = line
            self._kept_bytes += len(line)
            while self._kept_bytes > KEPT_BYTES and self._kept:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= len(dropped)

    def _find(self, step: int, index: int) -> bytes | None:
        try:
            path = self._run.file("rollouts", f"step-{step:06d}.jsonl.gz")
            key = (step, path.stat().st_mtime_ns, index)
        except OSError:
            return None
        with self._lock:
            return self._kept.get(key)


def _check_size(step: int, index: int, line: bytes, left: int) -> None:
    """Refuse what would take far more memory or time than the answers of a step do."""
    if index == MOST_GROUPS:
        raise Unreadable(f"step {step} has more than {MOST_GROUPS} groups")
    if len(line) >= LONGEST_GROUP or line.count(b"[") + line.count(b"{") > MOST_CONTAINERS:
        raise Unreadable(f"step {step}: a group is too large to be shown")
    if left <= 0:
        raise Unreadable(f"step {step}: its file unpacks to more than {LARGEST_RATIO} times itself")
