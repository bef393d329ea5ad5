"""Where reward functions run: a worker process that can be killed, or a thread that can be left.

Both have the same two methods: `give` them a batch, then `run` calls on it. An outcome tells which
answers were scored, which failed, and whether the call got stuck: hung, crashed, failed as a whole.
"""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Protocol

from groupwise.errors import RewardError
from groupwise.rewards.base import Score, Signature, check_usable, signature_of
from groupwise.rewards.call import Answers, Board, Call, Loaded, hung, perform
from groupwise.rewards.messages import Done, Failure, Load, Refused, Unload

IMPORT_SECONDS = 300.0
"""How long a user's module may take to import: it may load torch, or a model."""

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Outcome:
    scores: dict[int, Score] = field(default_factory=dict)
    """By slot of the call's picked answers."""
    failures: dict[int, str] = field(default_factory=dict)
    stuck: str | None = None
    """Why answers are left that have neither a score nor a failure."""


class Place(Protocol):
    @property
    def count(self) -> int:
        """How many rewards are loaded here; a call names one by its position."""
        ...

    def give(self, answers: Answers) -> None: ...

    def run(self, call: Call) -> Outcome: ...


class WorkerDied(Exception):
    pass


class Worker:
    """A process of our own that imports the functions and scores; killed and restarted at need."""

    def __init__(self) -> None:
        self._loads: list[Load] = []
        self._signatures: list[Signature] = []
        self._answers: Answers | None = None
        self._start()

    def load(self, reference: str, options: Mapping[str, Any]) -> Signature:
        """Import a function there. Raises RewardError when that fails."""
        load = Load(reference, dict(options))
        try:
            reply = self._ask(load, IMPORT_SECONDS)
        except WorkerDied as death:
            self._restart()
            raise RewardError(f"reward {reference!r}: importing it {death}") from None
        if isinstance(reply, Refused):
            raise RewardError(reply.why)
        assert isinstance(reply, Signature), reply
        self._loads.append(load)
        self._signatures.append(reply)
        return reply

    @property
    def count(self) -> int:
        return len(self._loads)

    def unload(self) -> None:
        """Forget the reward that was loaded last."""
        self._loads.pop()
        self._signatures.pop()
        self._ask(Unload(), IMPORT_SECONDS)

    def give(self, answers: Answers) -> None:
        self._revive()
        self._answers = answers
        try:
            reply = self._ask(answers, IMPORT_SECONDS)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            reply = Refused(f"{type(error).__name__}: {error}")
        if isinstance(reply, Refused):
            raise RewardError(
                f"a column of the task cannot be sent to the rewards' process ({reply.why}): "
                "make its values plain text, numbers, lists or dicts"
            )

    def run(self, call: Call) -> Outcome:
        self._revive()
        count, failures, stuck = len(call.picked), {}, None
        self._board.clear(count)
        grace = _grace(self._signatures[call.reward])
        try:
            self._connection.send(call)
            while not isinstance(reply := self._receive(call.timeout, grace), Done):
                assert isinstance(reply, Failure), reply
                if reply.slot is None:
                    stuck = reply.what
                else:
                    failures[reply.slot] = reply.what
        except (WorkerDied, OSError) as death:
            stuck, scores = str(death), self._board.scores(count)
            self._restart()
            return Outcome(scores, failures, stuck)
        return Outcome(self._board.scores(count), failures, stuck)

    def close(self) -> None:
        self._connection.close()
        os.close(self._lifeline)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        # The whole session, so that what a reward started goes too.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        watched, self._lifeline = os.pipe()
        with tempfile.TemporaryFile() as board:
            board.write(bytes(Board.BYTES))
            board.flush()
            self._board = Board(board.fileno())
            inherited = (theirs.fileno(), board.fileno(), watched)
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "groupwise.rewards.worker", *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=inherited,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the parent, which then closes us
            )
        theirs.close()
        os.close(watched)
        self._connection = Connection(ours.detach())

    def _revive(self) -> None:
        """A worker that died between two calls did not die of the next one's answers."""
        if self._process.poll() is not None:
            self._restart()

    def _restart(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.close()
        self._start()
        loads, self._loads, self._signatures = self._loads, [], []
        for load in loads:
            self.load(load.reference, load.options)
        if self._answers is not None:
            self.give(self._answers)

    def _ask(self, message: Load | Unload | Answers, seconds: float) -> Any:
        self._connection.send(message)
        return self._receive(seconds)

    def _receive(self, seconds: float, grace: float = 0.0) -> Any:
        """The next message, as long as the board shows progress at least every `seconds`."""
        progress, since = self._board.progress, time.monotonic()
        while not self._connection.poll(_POLL_SECONDS):
            now = time.monotonic()
            if self._board.progress != progress:
                progress, since = self._board.progress, now
            elif now - since > seconds + grace:
                raise WorkerDied(hung(seconds))
        try:
            return self._connection.recv()
        except (EOFError, ConnectionError):
            raise WorkerDied(self._cause_of_death()) from None

    def _cause_of_death(self) -> str:
        code = self._process.wait()
        if code < 0:
            return f"crashed its process ({signal.Signals(-code).name})"
        return f"ended its process (exit code {code})"


class InThread:
    """For functions that no other process can import: lambdas, closures, those of the main script.

    A thread cannot be killed. One that hangs is left behind as a daemon, and a function stuck in C
    code that holds the interpreter lock stops everything.
    """

    def __init__(self) -> None:
        self._rewards: list[Loaded] = []
        self._answers = Answers([], [], [])

    def load(self, function: Callable[..., Any], options: Mapping[str, Any]) -> Signature:
        signature = signature_of(function)
        check_usable(function)
        self._rewards.append(Loaded(function, signature, dict(options)))
        return signature

    @property
    def count(self) -> int:
        return len(self._rewards)

    def unload(self) -> None:
        """Forget the reward that was loaded last."""
        self._rewards.pop()

    def give(self, answers: Answers) -> None:
        self._answers = answers

    def run(self, call: Call) -> Outcome:
        board, failures, whole = Board(), {}, []
        board.clear(len(call.picked))

        def failed(slot: int | None, what: str) -> None:
            if slot is None:
                whole.append(what)
            else:
                failures[slot] = what

        reward = self._rewards[call.reward]
        thread = threading.Thread(
            target=perform, args=(reward, self._answers, call, board, failed), daemon=True
        )
        hangs = _hangs(thread, board, call.timeout + _grace(reward.signature))
        scores, failures = board.scores(len(call.picked)), dict(failures)
        stuck = hung(call.timeout) if hangs else whole[0] if whole else None
        return Outcome(scores, failures, stuck)


def _grace(signature: Signature) -> float:
    """Coroutines that wait too long are given up by their event loop; leave it a moment."""
    return 0.5 if signature.asynchronous and not signature.batch else 0.0


def _hangs(thread: threading.Thread, board: Board, seconds: float) -> bool:
    thread.start()
    progress, since = board.progress, time.monotonic()
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        now = time.monotonic()
        if board.progress != progress:
            progress, since = board.progress, now
        elif now - since > seconds and thread.is_alive():
            return True
    return False


def importable(function: Callable[..., Any]) -> str | None:
    """`module:function` if another process could import it by that name, else None."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module is None or module == "__main__" or "." in name or not name.isidentifier():
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is function else None
