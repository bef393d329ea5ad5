"""The process that environments are forked from: groupwise.environments.worker CONTROL

It imports the user's code once. Each process forked from it has one episode at a time, on its main
thread: code may use signals there, hold the interpreter lock or crash, which costs that episode.
CONTROL is an inherited file descriptor. It imports no torch.

In:   what makes an environment, once; then FORK with a socket, or WAIT with a process's number
Out:  an Answer; then the number of the process; the exit code of the process
"""

import array
import asyncio
import contextlib
import ctypes
import os
import random
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from groupwise.environments.base import Environment, checked_reply, checked_scores
from groupwise.environments.messages import Ask, MethodResult, receive
from groupwise.environments.threads import failure
from groupwise.errors import GroupwiseError
from groupwise.types import Problem

FORK, WAIT = b"f", b"w"
_SET_DEATH_SIGNAL = 1


def main(control: int) -> None:
    os.set_inheritable(control, False)
    sys.stdout = sys.stderr  # standard output is the parent's
    connection = Connection(control)
    try:
        make = connection.recv()
    except EOFError:
        return
    except BaseException as error:  # the user's module raises, or cannot be imported here
        connection.send(MethodResult(failed=f"{type(error).__name__}: {error}"))
        return
    connection.send(MethodResult())
    ours = os.getpid()
    with socket.socket(fileno=os.dup(control)) as requests:
        child = _answer_requests(requests)
    if child is not None:
        connection.close()
        _be_a_child(ours)
        asyncio.run(_Serving(Connection(child), make).run())


def _answer_requests(requests: socket.socket) -> int | None:
    """In a forked process: its socket. Otherwise None, when the parent has gone."""
    while True:
        what, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
        if what == FORK:
            number = os.fork()
            if number == 0:
                return descriptors[0]
            os.close(descriptors[0])
            _send_number(requests, number)
        elif what == WAIT:
            _, status = os.waitpid(_receive_number(requests), 0)
            _send_number(requests, os.waitstatus_to_exitcode(status))
        else:
            return None


def _be_a_child(parent: int) -> None:
    """End when the process that forked us does; what we start ends with us."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked for that
        os._exit(0)


class _Serving:
    """One environment after another. Its event loop goes on between calls."""

    def __init__(self, connection: Connection, make: Callable[[Problem], Environment]) -> None:
        self.connection, self.make, self.process = connection, make, os.getpid()
        self.environment: Environment | None = None

    async def run(self) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                try:
                    ask = await receive(self.connection)
                except (EOFError, ConnectionError):
                    raise
                except Exception as error:  # a column whose class this process does not know
                    self.connection.send(MethodResult(failed=f"cannot be asked: {error}"))
                    continue
                self._send(await self._answer(ask))

    async def _answer(self, ask: Ask) -> MethodResult:
        try:
            return MethodResult(await self._perform(ask))
        except GroupwiseError as error:
            return MethodResult(fixable=str(error))
        except BaseException as error:
            return MethodResult(failed=str(failure("", error)).strip())

    async def _perform(self, ask: Ask) -> Any:
        """What is returned is checked here, where it can neither block nor end the run."""
        if ask.method == "reset":
            problem, seed = ask.arguments
            _seed(seed)
            self.environment = self.make(problem)
            reply = checked_reply(await self.environment.reset(problem, seed))
            return reply, tuple(self.environment.tools)
        assert self.environment is not None
        if ask.method == "step":
            return checked_reply(await self.environment.step(*ask.arguments))
        if ask.method == "score":
            return checked_scores(await self.environment.score())
        environment, self.environment = self.environment, None
        return await environment.close()

    def _send(self, answer: MethodResult) -> None:
        if os.getpid() != self.process:  # the environment has forked: only one of the two answers
            os._exit(0)
        try:
            self.connection.send(answer)
        except (EOFError, ConnectionError):
            raise
        except Exception as error:  # it cannot be pickled
            self.connection.send(
                MethodResult(failed=f"returned what cannot be sent to another process: {error}")
            )


def _seed(seed: int) -> None:
    """Environments that draw their data without being given a seed begin alike in a group."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def _send_number(requests: socket.socket, number: int) -> None:
    requests.sendall(array.array("q", [number]).tobytes())


def _receive_number(requests: socket.socket) -> int:
    return array.array("q", requests.recv(8, socket.MSG_WAITALL))[0]


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):  # nobody asks any more
        main(int(sys.argv[1]))
