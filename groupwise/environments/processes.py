"""Environments in processes of their own: a crash or a hang costs an episode, never the run.

One process imports the user's code and is forked for each episode that runs at the same time. A
process has one episode at a time, on its main thread, and then the next one; what hangs is killed.
"""

import array
import contextlib
import logging
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from groupwise.environments.base import (
    Environment,
    EnvironmentFactory,
    EnvironmentFailed,
    Reply,
    Turn,
)
from groupwise.environments.messages import Ask, MethodResult, receive, send
from groupwise.environments.worker import FORK, WAIT
from groupwise.errors import ConfigError, GroupwiseError
from groupwise.rewards.isolation import IMPORT_SECONDS
from groupwise.rewards.supervised import SupervisedWorker, bounded_connection, how_it_ended
from groupwise.types import Problem

log = logging.getLogger("groupwise")


class CannotBeMoved(Exception):
    """The environment cannot be made in another process."""


@dataclass(eq=False)
class Worker:
    """A forked process and the socket to it."""

    number: int
    connection: Connection

    def kill(self) -> None:
        """Its whole session, so that what the environment started goes too."""
        for kill in (os.killpg, os.kill):  # it has a session of its own soon after its start
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.number, signal.SIGKILL)


class Workers:
    """All processes of one environment. Safe to use from several threads."""

    def __init__(self, make: Callable[[Problem], Environment]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._start()

    def take(self) -> Worker:
        """An idle process, or a new one. Raises EnvironmentFailed where none can be had."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            try:
                return self._fork()
            except OSError:
                log.warning("the process that environments are forked from has ended: restarted")
            try:
                self._end()
                self._start()
                return self._fork()
            except (OSError, CannotBeMoved) as error:
                raise EnvironmentFailed(f"has no process to run in: {error}") from None

    def give_back(self, worker: Worker) -> None:
        with self._lock:
            self._idle.append(worker)

    def end(self, worker: Worker) -> str:
        """Kill it. How it had ended before, if it had."""
        worker.kill()
        worker.connection.close()
        with self._lock:
            self._all.discard(worker)
            try:
                self._requests.sendall(WAIT + _number(worker.number))
                return how_it_ended(self._receive_number())
            except OSError:
                return "lost its process"

    def close(self) -> None:
        with self._lock:
            self._end()

    def _start(self) -> None:
        self._requests, theirs = socket.socketpair()
        with theirs:
            self._process = SupervisedWorker("groupwise.environments.worker", (theirs.fileno(),))
        connection = Connection(os.dup(self._requests.fileno()))
        try:
            connection.send(self._make)
            if not connection.poll(IMPORT_SECONDS):
                raise CannotBeMoved(f"importing it took more than {IMPORT_SECONDS:g} s")
            answer: MethodResult = connection.recv()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            self._end()
            raise CannotBeMoved(str(error)) from None
        except (EOFError, OSError):
            ended = self._process.wait(IMPORT_SECONDS)
            self._end()
            how = "hangs" if ended is None else how_it_ended(ended)
            raise CannotBeMoved(f"importing it {how}") from None
        finally:
            connection.close()
        if answer.failed:
            self._end()
            raise CannotBeMoved(answer.failed)

    def _fork(self) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._requests, [FORK], [theirs.fileno()])
        worker = Worker(self._receive_number(), bounded_connection(ours))
        self._all.add(worker)
        return worker

    def _receive_number(self) -> int:
        data = self._requests.recv(8, socket.MSG_WAITALL)
        if len(data) < 8:
            raise ConnectionError("it ended")
        return array.array("q", data)[0]

    def _end(self) -> None:
        for worker in self._all:
            worker.kill()
            worker.connection.close()
        self._all.clear()
        self._idle.clear()
        self._requests.close()
        self._process.wait(1.0)
        self._process.end()


class ProcessEnvironment(Environment):
    """An environment that lives in another process."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._worker: Worker | None = None

    async def reset(self, problem: Problem, seed: int) -> Reply:
        self._worker = self._workers.take()
        reply, self.tools = await self._ask("reset", problem, seed)
        return reply

    async def step(self, turn: Turn) -> Reply:
        return await self._ask("step", turn)

    async def score(self) -> Mapping[str, float | None]:
        return await self._ask("score")

    async def close(self) -> None:
        if self._worker is None:
            return
        try:
            await self._ask("close")
        except EnvironmentFailed:
            if self._worker is None:
                raise
        self._workers.give_back(self._worker)
        self._worker = None

    async def _ask(self, method: str, *arguments: Any) -> Any:
        worker = self._worker
        if worker is None:
            raise EnvironmentFailed("its process is gone")
        try:
            await send(worker.connection, Ask(method, arguments))
            answer: MethodResult = await receive(worker.connection)
        except (EOFError, OSError):
            self._worker = None
            raise EnvironmentFailed(self._workers.end(worker)) from None
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"a column of the problem cannot be sent to the environment's process ({error}): "
                "make its values plain text, numbers, lists or dicts"
            ) from error
        except BaseException:  # cancelled: it did not answer in time
            self._worker = None
            self._workers.end(worker)
            raise
        if answer.fixable:
            raise GroupwiseError(answer.fixable)
        if answer.failed:
            raise EnvironmentFailed(answer.failed)
        return answer.value


def in_processes(factory: EnvironmentFactory) -> EnvironmentFactory:
    """The same environment in processes of its own; in threads where it cannot be moved there."""
    try:
        workers = Workers(factory.make)
    except CannotBeMoved as error:
        log.warning(
            "the environment %s runs in threads of this process, where a crash would end the run: "
            "another process cannot make it (%s). Put it into a module of its own",
            factory.name,
            error,
        )
        return factory

    def close() -> None:
        workers.close()
        factory.close()

    def make(problem: Problem) -> ProcessEnvironment:
        return ProcessEnvironment(workers)

    return replace(factory, make=make, close=close, thread="shared")


def _number(number: int) -> bytes:
    return array.array("q", [number]).tobytes()
