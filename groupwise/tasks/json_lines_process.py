"""A process that answers requests with lines of JSON: for code with an interpreter of its own.

It is started with the first request, and again with the next one after it ended. Who waits for an
answer when it ends is told so, with the last that it wrote to its standard error.
"""

import json
import os
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from typing import IO, Any

from groupwise.errors import quoted

PING_SECONDS = 10.0
"""So long a process may be silent after a request took too long, before it is ended."""


class ProcessFailed(Exception):
    """It answered that a request failed, or it ended before it answered."""


class JsonLinesProcess:
    """`first` is a request that each new process gets before all others."""

    def __init__(self, command: Sequence[str], first: tuple[str, dict[str, Any]]) -> None:
        self.command, self.first = tuple(command), first
        self._lock = threading.Lock()
        self._running: _Running | None = None

    def send(self, do: str, **fields: Any) -> "Future[Any]":
        """The answer to come."""
        return self._process().send(do, fields)

    def ask(self, do: str, **fields: Any) -> Any:
        return self.send(do, **fields).result()

    def end_if_blocked(self) -> None:
        """For after a request that took too long: a process that answers nothing is ended."""
        if self._running is not None:
            # In a thread: one that reads nothing may have let its pipe fill up.
            threading.Thread(target=self._running.end_unless_it_answers, daemon=True).start()

    def _process(self) -> "_Running":
        with self._lock:
            # A process that was forked must not read its parent's answers.
            fresh = self._running is not None and self._running.owner == os.getpid()
            if self._running is None or not fresh or self._running.ended:
                self._running = _Running(self.command)
                self._running.send(*self.first).result()
            return self._running


class _Running:
    def __init__(self, command: tuple[str, ...]) -> None:
        self.owner, self.ended = os.getpid(), False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
        )
        self._waiting: dict[int, Future[Any]] = {}
        self._count, self._lock = 0, threading.Lock()
        weakref.finalize(self, _end, self._process)
        # Not a bound method: the thread would keep this object, and so the process, for ever.
        arguments = (weakref.ref(self), self._process.stdout)
        threading.Thread(target=_read, args=arguments, daemon=True).start()

    def send(self, do: str, fields: dict[str, Any]) -> "Future[Any]":
        answer: Future[Any] = Future()
        with self._lock:
            self._count += 1
            number, self._waiting[self._count] = self._count, answer
            line = json.dumps({"id": number, "do": do, **fields})
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
            except OSError:
                self.ended = True
        if self.ended:
            self.close_all()
        return answer

    def answered(self, line: str) -> None:
        data = json.loads(line)
        waiting = self._waiting.pop(data["id"], None)
        if waiting is None:
            return
        try:
            if "error" in data:
                waiting.set_exception(ProcessFailed(data["error"]))
            else:
                waiting.set_result(data["result"])
        except InvalidStateError:  # nobody waits any longer
            pass

    def end_unless_it_answers(self) -> None:
        timer = threading.Timer(PING_SECONDS, self.end)
        timer.daemon = True
        timer.start()
        self.send("ping", {}).add_done_callback(lambda _: timer.cancel())

    def close_all(self) -> None:
        """The process has ended: so does all waiting."""
        self.ended = True
        self.end()
        code, said = self._process.wait(), self._last_error()
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for future in waiting:
            if not future.done():
                future.set_exception(ProcessFailed(f"its process ended (exit code {code}){said}"))

    def end(self) -> None:
        self.ended = True
        self._process.kill()

    def _last_error(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {quoted(lines[-1], 300)}" if lines else ""


def _read(running: "weakref.ref[_Running]", answers: IO[str]) -> None:
    for line in answers:
        owner = running()
        if owner is None:
            return
        try:
            owner.answered(line)
        except (ValueError, KeyError, TypeError):  # no answer of ours: it cannot be trusted further
            break
        del owner
    owner = running()
    if owner is not None:
        owner.close_all()


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
