"""An event loop in a thread of its own: coroutines from any thread and any other loop run in it.

All requests to servers run in one such loop (`client_loop`), so that what is known of the servers
is touched by one thread alone, whoever asks. A server's model lives in another (model_loop.py).
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

Result = TypeVar("Result")
MAX_THREADS = 128
"""For what blocks: as many servers may be started, and sent weights, at the same time."""


class EventLoopThread:
    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(ThreadPoolExecutor(MAX_THREADS))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result, for code that is no coroutine."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # whoever was interrupted wants no result any more
            raise

    async def result(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result, for coroutines of other loops. Cancelled with whoever awaits it."""
        return await asyncio.wrap_future(self.start(work))

    def close(self) -> None:
        """Ends the thread when what it has begun is done."""
        if self._thread.is_alive():
            self.wait(self._finish())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        await self.loop.shutdown_default_executor()

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()


@cache
def client_loop() -> EventLoopThread:
    """The loop of all clients of this process; it ends with the process."""
    return EventLoopThread("remote clients")


# A process that is forked has no threads but its own: it makes a loop of its own when it needs one.
os.register_at_fork(after_in_child=client_loop.cache_clear)
