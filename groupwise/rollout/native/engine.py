"""The native engine: a stream of requests, in process, on the policy's own weights.

`sample` may be called at any time and any number at once. While answers are wanted, one task takes
decode steps in the event loop's own thread (scheduler.py). An answer is drawn with its own key and
does not depend on what else is in the batch. When weights change while answers grow, these go on:
their next tokens are drawn by the new weights, over keys and values that the old ones computed, and
`Completion.versions` says which tokens are whose. (An answer that is pre-empted after such a change
has all of its keys and values computed again by the newer weights.)
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from groupwise.compat.torch_modules import changes_in_place
from groupwise.errors import ConfigError
from groupwise.policy.compiled import decoder_layers
from groupwise.policy.policy import Policy
from groupwise.policy.weights import copy_into, trained_weights
from groupwise.rollout.engine import OnTokens, StreamingEngine
from groupwise.rollout.native.cuda_graphs import DecodeGraphs
from groupwise.rollout.native.decode import Decoder
from groupwise.rollout.native.decode_attention import DecodeAttention
from groupwise.rollout.native.fused_layers import FusedLayers, fused_layers
from groupwise.rollout.native.fused_projections import FusedProjections
from groupwise.rollout.native.kv_cache import PagedKVCache, kv_shape
from groupwise.rollout.native.limits import PAGE
from groupwise.rollout.native.scheduler import Scheduler
from groupwise.rollout.native.transposed_linear import use_transposed_linear
from groupwise.types import Completion, Request, Sampling

SLICE_SECONDS = 0.02
"""How long decode steps run before other tasks of the event loop get a turn."""


class NativeEngine(StreamingEngine):
    def __init__(
        self,
        policy: Policy,
        max_batch: int,
        compile_layers: bool = False,
        graphs: bool = True,
        *,
        fp8: bool = False,
        page: int | None = None,
        max_pages: int | None = None,
    ) -> None:
        """`page` tokens to a page, and at most `max_pages`: as the device suggests if None. `fp8`:
        layers compute in 8 bits, or an error says why they cannot."""
        self.policy, self.max_batch = policy, max_batch
        self.page = page or PAGE["cpu" if policy.device.type == "cpu" else "cuda"]
        self.max_pages = max_pages
        self.version = 0
        self.scheduler: Scheduler | None = None
        self.fused: FusedProjections | None = None
        self.layers: FusedLayers | None = None
        self.graphs = None
        self.compiled = compile_layers and policy.device.type == "cpu"
        """Whether the layers that run without graphs are compiled."""
        if graphs and policy.device.type == "cuda":
            self.graphs = DecodeGraphs(policy, max_batch, compile_layers, fp8=fp8)
        if fp8 and (self.graphs is None or self.graphs.fused is None):
            raise ConfigError(
                f"fp8: sampling in 8 bits needs a CUDA device ({policy.device.type} here) and "
                "weights that are not quantized; leave fp8 out, or take fp8=training"
            )
        self._step_task: asyncio.Task[None] | None = None
        self._weights: tuple[tuple[int, int], ...] = ()

    async def sample_stream(
        self, request: Request, sampling: Sampling, on_tokens: OnTokens | None
    ) -> tuple[Completion, ...]:
        if not request.keys:
            return ()
        if self.scheduler is None:
            with self._no_dropout(), self._sampling():
                self.scheduler = self._make_scheduler()
        future = asyncio.get_running_loop().create_future()
        self.scheduler.submit(request, sampling, future, on_tokens)
        if self._step_task is None or self._step_task.done():
            self._step_task = asyncio.create_task(self._take_steps())
            # Ctrl-C in a step ends the event loop itself: nobody awaits this task.
            self._step_task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await future

    def load_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        copy_into(trained_weights(self.policy), weights)
        self.version = version
        self._follow_weights(loaded=True)

    def close(self) -> None:
        """Free the cache and the graphs, and cancel open requests."""
        self._reset(None)

    def _make_scheduler(self) -> Scheduler:
        cache = PagedKVCache(kv_shape(self.policy), self.page, self.max_pages)
        decoder = Decoder(self.policy, DecodeAttention(cache), self.graphs, self.compiled)
        scheduler = Scheduler(self.policy, cache, decoder, self.max_batch)
        scheduler.version = self.version
        return scheduler

    async def _take_steps(self) -> None:
        """Decode steps as long as answers are wanted; an error fails all requests."""
        try:
            self._follow_weights()
            with self._no_dropout():
                while self.scheduler is not None and self.scheduler.busy:
                    with self._sampling():
                        until = time.monotonic() + SLICE_SECONDS
                        self.scheduler.step()
                        while self.scheduler.busy and time.monotonic() < until:
                            self.scheduler.step()
                    if self.scheduler.busy:
                        await asyncio.sleep(0)
        except Exception as error:
            self._reset(error)
        except BaseException:
            self._reset(None)
            raise

    def _reset(self, error: Exception | None) -> None:
        """Drop the scheduler and its pages, whose state is unknown after an error; fail or cancel
        open requests."""
        scheduler, self.scheduler = self.scheduler, None
        if self.graphs is not None:
            self.graphs.reset()
        for call in scheduler.calls if scheduler else ():
            if not call.future.done():
                call.future.cancel() if error is None else call.future.set_exception(error)

    def _follow_weights(self, loaded: bool = False) -> None:
        """Notice weights that were loaded, changed in place, or put elsewhere in memory."""
        weights = tuple((p.data_ptr(), changes_in_place(p)) for p in self.policy.model.parameters())
        if not loaded and weights == self._weights:
            return
        self._weights = weights
        if self.scheduler is not None:
            self.scheduler.weights_changed(self.version)
        if self.graphs is not None:
            self.graphs.follow_weights()
        if self.layers is not None:
            self.layers.follow_weights()

    @contextmanager
    def _no_dropout(self) -> Iterator[None]:
        """While answers are sampled: looking at all modules in every slice would take long."""
        model = self.policy.model
        training = model.training
        model.eval()
        try:
            yield
        finally:
            if training:
                model.train()

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """No gradients, and on a CPU faster products: for one slice, as other tasks may train."""
        if self.policy.model.training:
            self.policy.model.eval()
        with torch.no_grad(), self._faster_products():
            yield

    @contextmanager
    def _faster_products(self) -> Iterator[None]:
        """On a CPU; on CUDA they come with compiled layers (compiled_decode.py)."""
        if self.policy.device.type != "cpu":
            yield
            return
        moved = self.layers is not None and not self.layers.is_valid
        if self.fused is None or moved or not self.fused.is_valid:
            self.fused = FusedProjections(decoder_layers(self.policy.model) or [])
            self.layers = fused_layers(self.policy)
        if self.scheduler is not None:
            self.scheduler.decoder.layers = self.layers
        with self.fused.in_use(), use_transposed_linear(self.policy.model):
            yield
