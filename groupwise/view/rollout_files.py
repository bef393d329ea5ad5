"""The stored answers of a run: one compressed file a step, opened one at a time, read by line."""

import gzip
import os
import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator

from groupwise.view.catalog import Run
from groupwise.view.stored_group import StoredGroup, Unreadable, stored_group

NAME = re.compile(r"step-(\d{6,12})\.jsonl\.gz", re.ASCII)
LONGEST_GROUP = 256_000_000
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
                found = (NAME.fullmatch(entry.name) for entry in os.scandir(folder))
                self._listed = (changed, sorted(int(match[1]) for match in found if match))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return self._listed[1]

    def lines(self, step: int) -> Iterator[bytes]:
        """The groups of a step, unparsed, in stored order."""
        try:
            path = self._run.file("rollouts", f"step-{step:06d}.jsonl.gz")
            changed = path.stat().st_mtime_ns
            with gzip.open(path, "rb") as file:
                index = 0
                while line := file.readline(LONGEST_GROUP):
                    if len(line) == LONGEST_GROUP:
                        raise Unreadable(f"step {step}: a group is longer than {LONGEST_GROUP} B")
                    self._keep((step, changed, index), line)
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
        for found, line in enumerate(self.lines(step)):
            if found == index:
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
