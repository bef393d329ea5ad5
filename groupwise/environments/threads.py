"""A thread with an event loop of its own: where the code of one episode's environment runs.

It may block there, or hang: sampling and other episodes go on. A thread cannot be ended from
outside; one that hangs is left behind as a daemon, and ends should it ever return.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeVar

from groupwise.environments.base import EnvironmentBusy, EnvironmentFailed
from groupwise.errors import GroupwiseError, quoted

Result = TypeVar("Result")
END_SECONDS = 5.0


class EpisodeThread:
    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self.hangs = False
        """Whether a call did not return in time: the next one may have to wait for ever."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            # A call that was given up still has to end what it began: a process, a connection.
            if left := asyncio.all_tasks(self._loop):
                self._loop.run_until_complete(_ended(left))
        finally:
            self._loop.close()

    async def call(
        self, what: str, work: Callable[[], Awaitable[Result]], seconds: float
    ) -> Result:
        """The result of a coroutine there. Raises EnvironmentFailed if it hangs or raises."""

        async def guarded() -> Result:
            try:
                return await work()
            except (GroupwiseError, EnvironmentBusy):  # for the user to fix, or to try again
                raise
            except GeneratorExit:  # the program ends, and nobody waits for this call any more
                raise
            except BaseException as error:  # SystemExit would end the thread without a word
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                    raise  # given up by `call`, which has told why
                raise failure(what, error) from error

        future = asyncio.run_coroutine_threadsafe(guarded(), self._loop)
        # A loop that sampling blocked wakes up late: what counts is whether there is a result.
        waited = asyncio.wrap_future(future)
        await asyncio.wait([waited], timeout=max(seconds, 0.0))
        if waited.done() and not waited.cancelled():
            waited.exception()  # asyncio logs exceptions that nobody has looked at
        if not future.done():
            future.cancel()
            self.hangs = True
            raise EnvironmentFailed(f"{what} did not return within {seconds:g} s")
        return future.result()

    def close(self) -> None:
        """End the thread, when what it is doing returns."""
        self._loop.call_soon_threadsafe(self._loop.stop)


class SharedThread(EpisodeThread):
    """One thread for all episodes, whose code only ever awaits: hundreds of threads with an event
    loop each would take a second to come and go."""

    _threads: ClassVar[list[EpisodeThread]] = []

    def __init__(self, name: str) -> None:
        """The thread outlives the episode that has the name."""
        if not (self._threads and self._threads[0].is_alive):  # a fork leaves threads behind
            self._threads[:] = [EpisodeThread("environments")]
        self._loop, self._thread = self._threads[0]._loop, self._threads[0]._thread
        self.hangs = False

    def close(self) -> None:
        """Other episodes go on."""


class SamplingThread:
    """In place of EpisodeThread: the environment's code runs in the thread that samples, one call
    at a time. Nothing ends a call that hangs, and sampling waits; in return a script's connections
    and signal handlers work as they do in the script itself."""

    hangs = False

    def __init__(self, name: str) -> None:
        """No thread is made that could have the name."""

    async def call(
        self, what: str, work: Callable[[], Awaitable[Result]], seconds: float
    ) -> Result:
        try:
            return await work()
        except (GroupwiseError, EnvironmentBusy, asyncio.CancelledError):
            raise
        except (Exception, SystemExit) as error:
            raise failure(what, error) from error

    def close(self) -> None:
        """There is nothing to end."""


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    done, _ = await asyncio.wait(tasks, timeout=END_SECONDS)
    for task in done:
        if not task.cancelled():
            task.exception()  # asyncio logs exceptions that nobody has looked at


def failure(what: str, error: BaseException) -> EnvironmentFailed:
    if isinstance(error, EnvironmentFailed):
        return EnvironmentFailed(f"{what} {error}")
    return EnvironmentFailed(f"{what} raised {type(error).__name__}: {_text(error)}")


def _text(error: Any) -> str:
    try:
        return quoted(str(error), 300)
    except Exception:
        return "(its message cannot be shown)"
