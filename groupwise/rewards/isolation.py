"""Where reward functions run: a worker process that can be killed, or a thread that cannot.

Both are a `Runner`: `set_answers` takes a batch, then `run` scores some of it. The outcome says
which answers were scored, which failed, and why others are left: hung, crashed, failed as a whole.
"""

import pickle
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from groupwise.errors import RewardError
from groupwise.rewards.base import Score, Signature, check_usable, signature_of
from groupwise.rewards.call import Answers, Board, Call, Loaded, hung, perform
from groupwise.rewards.messages import Done, Failure, Load, Refused
from groupwise.rewards.supervised import (
    SupervisedWorker,
    bounded_connection,
    how_it_ended,
    received,
)

IMPORT_SECONDS = 300.0
"""How long a user's module may take to import: it may load torch, or a model."""

_POLL_SECONDS = 0.05
_EXIT_SECONDS = 1.0
_BROKEN = "wrote into the connection of its process to ours"


@dataclass(frozen=True)
class Outcome:
    scores: dict[int, Score] = field(default_factory=dict)
    """By slot of the call's picked answers."""
    failures: dict[int, str] = field(default_factory=dict)
    stuck: str | None = None
    """Why answers are left that have neither a score nor a failure."""


class Runner(Protocol):
    @property
    def count(self) -> int:
        """How many rewards are loaded here; a call names one by its position."""
        ...

    def set_answers(self, answers: Answers) -> None: ...

    def run(self, call: Call) -> Outcome: ...


class WorkerDied(Exception):
    pass


class WorkerProcess:
    """A process of our own that imports the functions and scores; killed and restarted at need.

    One that is `shared` keeps no asynchronous functions: they get a process of their own.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._loads: list[Load] = []
        self._signatures: list[Signature] = []
        self._answers: Answers | None = None
        self._start()

    def load(self, reference: str, options: Mapping[str, Any]) -> Signature:
        """Import a function there. Raises RewardError when that fails."""
        load = Load(reference, dict(options), self._shared)
        try:
            reply = self._ask(load, IMPORT_SECONDS)
        except (WorkerDied, OSError) as death:
            self._restart()
            raise RewardError(f"reward {reference!r}: importing it {death}") from None
        if isinstance(reply, Refused):
            raise RewardError(reply.why)
        assert isinstance(reply, Signature), reply
        if load.keeps(reply):
            self._loads.append(load)
            self._signatures.append(reply)
        return reply

    @property
    def count(self) -> int:
        return len(self._loads)

    def set_answers(self, answers: Answers) -> None:
        self._revive()
        self._answers = answers
        try:
            self._send_answers(answers)
        except (WorkerDied, OSError):  # lost since the last call, though its process may still run
            self._restart()

    def _send_answers(self, answers: Answers) -> None:
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
                if not isinstance(reply, Failure):
                    raise WorkerDied(_BROKEN)
                if reply.slot is None:
                    stuck = reply.what
                else:
                    failures[reply.slot] = reply.what
        except (WorkerDied, OSError) as death:
            stuck, scores = str(death), self._board.scores(count)
            self._restart()
            lost = len(scores) + len(failures) < count  # not if it went after its last score
            return Outcome(scores, failures, stuck if lost else None)
        return Outcome(self._board.scores(count), failures, stuck)

    def close(self) -> None:
        """It ends by itself when the connection does, or is ended a second later."""
        self._connection.close()
        self._process.wait(_EXIT_SECONDS)
        self._process.end()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as board:
            board.write(bytes(Board.BYTES))
            board.flush()
            self._board = Board(board.fileno())
            inherited = (theirs.fileno(), board.fileno())
            self._process = SupervisedWorker("groupwise.rewards.worker", inherited)
        theirs.close()
        self._connection = bounded_connection(ours)

    def _revive(self) -> None:
        """A worker that died between two calls did not die of the next one's answers."""
        if not self._process.running:
            self._restart()

    def _restart(self) -> None:
        self._process.end()
        self._connection.close()
        self._start()
        loads, self._loads, self._signatures = self._loads, [], []
        for load in loads:
            self.load(load.reference, load.options)
        if self._answers is None:
            return
        try:
            self._send_answers(self._answers)
        except (WorkerDied, OSError) as death:
            raise RewardError(f"the rewards' process does not stay: it {death}") from None

    def _ask(self, message: Load | Answers, seconds: float) -> Any:
        self._connection.send(message)
        return self._receive(seconds)

    def _receive(self, seconds: float, grace: float = 0.0) -> Any:
        """The next message, as long as the board shows progress at least every `seconds`."""
        if not _in_time(self._connection.poll, self._board, seconds + grace):
            raise WorkerDied(hung(seconds))
        try:
            return received(self._connection)
        except (EOFError, OSError) as error:
            broken = isinstance(error, OSError) and error.errno is None
            raise WorkerDied(_BROKEN if broken else self._cause_of_death()) from None

    def _cause_of_death(self) -> str:
        code = self._process.wait(_EXIT_SECONDS)
        if code is None:
            return "closed the connection of its process to ours"
        return how_it_ended(code)


class RunnerThread:
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

    def set_answers(self, answers: Answers) -> None:
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

        def ended(seconds: float) -> bool:
            thread.join(seconds)
            return not thread.is_alive()

        thread.start()
        in_time = _in_time(ended, board, call.timeout + _grace(reward.signature))
        stuck = hung(call.timeout) if not in_time else whole[0] if whole else None
        return Outcome(board.scores(len(call.picked)), dict(failures), stuck)


def _grace(signature: Signature) -> float:
    """Coroutines that wait too long are given up by their event loop; leave it a moment."""
    return 0.5 if signature.asynchronous and not signature.batch else 0.0


def _in_time(wait: Callable[[float], bool], board: Board, seconds: float) -> bool:
    """Wait until `wait` returns True. False once the board shows no progress for `seconds`."""
    progress, since = board.progress, time.monotonic()
    while not wait(_POLL_SECONDS):
        now = time.monotonic()
        if board.progress != progress:
            progress, since = board.progress, now
        elif now - since > seconds:
            return False
    return True


def importable(function: Callable[..., Any]) -> str | None:
    """`module:function` if another process could import it by that name, else None."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module is None or module == "__main__" or "." in name or not name.isidentifier():
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is function else None
