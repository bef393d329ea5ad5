"""An engine in a thread of its own, so that it samples while another thread trains.

engine = EngineThread(NativeEngine(policy, 256))
engine.start(work())                        a coroutine on its loop, which awaits engine.sample
answers = run_sync(engine.sample(...))      from any other thread or loop

On a GPU the thread has a stream of its own, so that its kernels run beside those of training.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch
from torch import Tensor

from groupwise.rollout.engine import Engine, OnTokens, StreamingEngine, sample_stream
from groupwise.types import Completion, Request, Sampling

Result = TypeVar("Result")


class EngineThread(StreamingEngine):
    """An Engine whose inner engine is used by one thread alone. Close it to end that thread."""

    def __init__(self, engine: Engine, device: torch.device | None = None) -> None:
        """`device`: a GPU on which the engine's work gets a stream."""
        self.engine = engine
        self.stream = None
        if device is not None and device.type == "cuda":
            self.stream = torch.cuda.Stream(device, priority=-1)  # small kernels first
            self.stream.wait_stream(torch.cuda.default_stream(device))
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    async def sample_stream(
        self, request: Request, sampling: Sampling, on_tokens: OnTokens | None
    ) -> tuple[Completion, ...]:
        work = sample_stream(self.engine, request, sampling, on_tokens)
        if asyncio.get_running_loop() is self.loop:
            return await work
        return await asyncio.wrap_future(self.start(work))

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load between two decode steps, never within one. Blocks until it is done."""
        self._do(lambda: self._load(version, weights))

    def _load(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """After training's stream has computed them, and until they may be freed."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.default_stream(self.stream.device))
        self.engine.load_weights(version, weights)
        if self.stream is not None:
            self.stream.synchronize()

    def close(self) -> None:
        """What is still being sampled is cancelled."""
        if self.loop.is_closed():
            return
        self._do(self.engine.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Run a coroutine there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def _do(self, action: Callable[[], None]) -> None:
        if threading.current_thread() is self._thread:
            action()
            return

        async def act() -> None:
            action()

        self.start(act()).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        if self.stream is not None:
            torch.cuda.set_stream(self.stream)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
