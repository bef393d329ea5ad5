"""CUDA graphs of a decode step: a few batch sizes, captured once, replayed for every token.

A step of a small model is hundreds of kernels of a few microseconds each; launched from Python the
GPU would wait. The graph reads and writes fixed buffers, so that several steps run without the
host: each replay takes the token that the one before sampled. The next steps can be launched before
the tokens of these are read, so that the GPU does not wait while the host looks at them; rows of
answers that turn out to have ended are dropped. Page tables have a few widths, so that short
answers are not attended to as long ones would be.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from groupwise.batch import copied_to
from groupwise.compat.torch_compile import mark_rows_dynamic
from groupwise.policy.attention import use_attention
from groupwise.policy.policy import Policy
from groupwise.rollout.native.compiled_decode import CompiledDecodeLayers, compile_problem
from groupwise.rollout.native.decode_attention import DecodeAttention
from groupwise.rollout.native.fused_layers import FusedLayers, fused_layers, weight_addresses
from groupwise.rollout.native.limits import MULTI_STEP
from groupwise.rollout.native.running_batch import RunningAnswer, RunningBatch
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import HAS_KERNEL, has_kernel, sample_tokens
from groupwise.types import Sampling

log = logging.getLogger("groupwise")


@dataclass(frozen=True)
class Buffers:
    """Fixed tensors that graphs read and write: S rows, K steps."""

    last_token_S: Tensor
    kv_len_S: Tensor
    position_S: Tensor
    keys_S2: Tensor
    drawn_K2S: Tensor
    """Tokens and log-probs of each step; in float64, which holds both exactly."""
    step: Tensor
    page_tables: dict[int, Tensor]
    """One for each width that is in use: (S, width), distances of pages in elements."""

    @staticmethod
    def on(device: torch.device, rows: int) -> "Buffers":
        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        return Buffers(
            zeros(rows),
            zeros(rows),
            zeros(rows),
            zeros(rows, 2, dtype=torch.int32),
            zeros(MULTI_STEP, 2, rows, dtype=torch.float64),
            zeros(1),
            {},
        )

    def page_table(self, width: int) -> Tensor:
        if width not in self.page_tables:
            rows = len(self.kv_len_S)
            self.page_tables[width] = self.kv_len_S.new_zeros(rows, width)
        return self.page_tables[width]


@dataclass(frozen=True)
class GraphKey:
    rows: int
    table_width: int
    sampling: Sampling


@dataclass(frozen=True)
class LaunchedSteps:
    """Decode steps that were launched: whose they are, and where their tokens will be."""

    answers: Sequence[RunningAnswer]
    steps: int
    version: int
    """Of the weights that draw the tokens."""
    drawn_K2S: Tensor
    """On the host, once they are `done`."""
    done: torch.cuda.Event

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Wait for the tokens and log-probs: (n, steps) each."""
        self.done.synchronize()
        drawn = self.drawn_K2S.numpy()[:, :, : len(self.answers)].transpose(1, 2, 0)
        return drawn[0].astype(np.int64), drawn[1].astype(np.float32)


class DecodeGraphs:
    def __init__(
        self, policy: Policy, max_batch: int, compile_layers: bool, *, fp8: bool = False
    ) -> None:
        self.policy, self.max_batch = policy, max_batch
        self.compile_layers, self.fp8 = compile_layers, fp8
        self.layers: FusedLayers | CompiledDecodeLayers | None = None
        self._tried = False
        """Whether it was tried to have the layers run by our kernels."""
        self.buffers: Buffers | None = None
        self.captured: dict[GraphKey, torch.cuda.CUDAGraph] = {}
        self.weights: tuple[int, ...] = ()
        self.pool = None
        self.answers: Sequence[RunningAnswer] = ()
        """Whose rows the buffers hold, as far as launched steps will have brought them."""
        self.loaded_table: tuple[int, int, GraphKey] | None = None
        """Which rows and pages of the batch, for which graph, the page table holds."""

    def sample(
        self, logits_nV: Tensor, keys: Tensor, positions: Tensor, sampling: Sampling, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`sample_tokens`: one kernel, or compiled for any number of rows and this vocabulary."""
        if has_kernel(logits_nV, sampling):
            return sample_tokens(logits_nV, keys, positions, sampling, seen)
        mark_rows_dynamic(logits_nV, keys, positions, seen)
        return compiled_sample_tokens()(logits_nV, keys, positions, sampling, seen)

    def reset(self) -> None:
        """The cache was replaced, or the weights: graphs that point into them are invalid."""
        self.captured.clear()
        self.buffers = self.pool = self.loaded_table = None
        self.answers = ()

    def follow_weights(self) -> None:
        """Weights that are now elsewhere in memory invalidate the graphs and fused projections."""
        if self._tried and weight_addresses(self.policy) != self.weights:
            self.reset()
            self.layers, self._tried = None, False
        elif isinstance(self.layers, FusedLayers):
            self.layers.follow_weights()

    def launch(
        self,
        attention: DecodeAttention,
        batch: RunningBatch,
        rows: np.ndarray,
        sampling: Sampling,
        steps: int,
        version: int,
        unread: int = 0,
    ) -> LaunchedSteps | None:
        """`steps` more tokens for each of these rows, which own the pages for them.

        `unread` steps of these rows were launched before and are not in the batch yet. None where
        they have to be read first. What is written past an answer's end goes to page 0.
        """
        answers = [batch.answers[row] for row in rows.tolist()]
        longest = int(batch.kv_lens[rows].max()) + unread + steps
        width = table_width(-(-longest // attention.cache.page))
        key = GraphKey(padded_size(len(rows), self.max_batch), width, sampling)
        if unread and (key not in self.captured or not set(answers) <= set(self.answers)):
            return None
        graph = self._graph(attention, key)
        buffers = self.buffers
        assert buffers is not None
        self._arrange(buffers, batch, rows, answers, key.rows)
        if self.loaded_table != (batch.membership, batch.paging, key):
            self._load_page_table(buffers, attention, batch, rows, key)
            self.loaded_table = batch.membership, batch.paging, key
        buffers.step.zero_()
        for _ in range(steps):
            graph.replay()
        return LaunchedSteps(answers, steps, version, *self._copied_to_host(buffers, steps))

    def _copied_to_host(self, buffers: Buffers, steps: int) -> tuple[Tensor, torch.cuda.Event]:
        """A copy that is made when the steps are done: the next ones overwrite the buffer."""
        drawn, done = buffers.drawn_K2S[:steps], torch.cuda.Event()
        copy = torch.empty(drawn.shape, dtype=drawn.dtype, pin_memory=True)
        copy.copy_(drawn, non_blocking=True)
        done.record()
        return copy, done

    def _arrange(
        self,
        buffers: Buffers,
        batch: RunningBatch,
        rows: np.ndarray,
        answers: Sequence[RunningAnswer],
        size: int,
    ) -> None:
        """Bring the buffers' rows into the batch's order, or load them where some are not there."""
        count, device = len(rows), buffers.kv_len_S.device
        state = (buffers.last_token_S, buffers.kv_len_S, buffers.position_S, buffers.keys_S2)
        places = {answer: n for n, answer in enumerate(self.answers)}
        if set(answers) <= set(places):
            order = [places[answer] for answer in answers]
            if order == list(range(len(places))):
                return
            chosen = copied_to(torch.tensor(order), device)
            values = [tensor[chosen] for tensor in state]
        else:
            numbers = [batch.last_tokens[rows], batch.kv_lens[rows], batch.output_lens[rows]]
            keys = key_tensor(batch.keys[rows].tolist(), device)
            values = [*copied_to(torch.from_numpy(np.stack(numbers)), device), keys]
        for tensor, value in zip(state, values, strict=True):
            tensor[:count] = value
        buffers.kv_len_S[count:size] = 0
        self.answers = answers

    def _load_page_table(
        self,
        buffers: Buffers,
        attention: DecodeAttention,
        batch: RunningBatch,
        rows: np.ndarray,
        key: GraphKey,
    ) -> None:
        """Rows that only pad the batch have page 0 everywhere, whose distance is 0."""
        pages = batch.table[rows, : key.table_width]
        table = np.zeros((key.rows, key.table_width), dtype=np.int64)
        table[: len(rows), : pages.shape[1]] = attention.cache.offsets[pages]
        held = buffers.page_table(key.table_width)
        held[: key.rows] = copied_to(torch.from_numpy(table), held.device)

    def _graph(self, attention: DecodeAttention, key: GraphKey) -> torch.cuda.CUDAGraph:
        if key in self.captured:
            return self.captured[key]
        if self.buffers is None:
            self.buffers = Buffers.on(attention.cache.device, self.max_batch)
        self.answers, self.loaded_table = (), None
        self._prepare(attention)
        try:
            self._warm_up(self.buffers, attention, key)
        except Exception as error:  # a compiler can fail in any way; the plain layers always work
            if self.layers is None:
                raise
            log.warning("sampling without torch.compile: %s", str(error).split("\n")[0])
            self.layers, self.compile_layers = None, False
            self._warm_up(self.buffers, attention, key)
        graph = torch.cuda.CUDAGraph()
        # Beside training another thread may allocate on the device: that must not spoil it.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            self._step(attention, key)
        self.pool = self.pool or graph.pool()
        self.captured[key] = graph
        return graph

    def _warm_up(self, buffers: Buffers, attention: DecodeAttention, key: GraphKey) -> None:
        """Run the step that will be captured: kernels are compiled, libraries allocate memory.

        Pages in use hold keys that must not be overwritten: all rows write to page 0.
        """
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                buffers.page_table(key.table_width).zero_()
                buffers.kv_len_S.zero_()
                buffers.step.zero_()
                self._step(attention, key)
        torch.cuda.current_stream().wait_stream(side)

    @property
    def fused(self) -> FusedLayers | None:
        """The model's layers by our kernels, where it is of their kind."""
        if not self._tried:
            wanted = self.compile_layers or self.fp8
            self.layers = fused_layers(self.policy, fp8=self.fp8) if wanted else None
            self.weights, self._tried = weight_addresses(self.policy), True
        return self.layers if isinstance(self.layers, FusedLayers) else None

    def _prepare(self, attention: DecodeAttention) -> None:
        """Compile the layers if that is wanted and possible; note the weights' addresses."""
        if self.fused is None and self.compile_layers and self.layers is None:
            problem = compile_problem(self.policy.model, attention)
            if problem is None:
                self.layers = CompiledDecodeLayers(self.policy.model)
            else:
                log.info("sampling without torch.compile: %s", problem)
                self.compile_layers = False
        self.weights = weight_addresses(self.policy)

    def _step(self, attention: DecodeAttention, key: GraphKey) -> None:
        buffers, size = self.buffers, key.rows
        assert buffers is not None
        attention.use_buffers(buffers.page_table(key.table_width)[:size], buffers.kv_len_S[:size])
        compiled = self.layers.in_use(attention) if self.layers else nullcontext()
        with use_attention(self.policy.model, attention), compiled:
            hidden = self.policy.body(
                input_ids=buffers.last_token_S[:size, None],
                position_ids=buffers.kv_len_S[:size, None],
            )
        logits = self.policy.head(hidden[:, -1])
        no_tokens = torch.zeros(size, 0, dtype=torch.long, device=logits.device)
        tokens, logprobs = self.sample(
            logits, buffers.keys_S2[:size], buffers.position_S[:size], key.sampling, no_tokens
        )
        state = (buffers.last_token_S, buffers.kv_len_S, buffers.position_S)
        last_token, kv_len, position = (tensor[:size] for tensor in state)
        drawn = buffers.drawn_K2S[:, :, :size]
        end = end_step
        if HAS_KERNEL:
            from groupwise.rollout.native.end_step_kernel import end_step as end
        end(tokens, logprobs, last_token, kv_len, position, drawn, buffers.step)


@cache
def compiled_sample_tokens() -> Callable[..., tuple[Tensor, Tensor]]:
    """Not as a decorator: torch.compile takes seconds to load its compiler."""
    return torch.compile(sample_tokens)


def end_step(
    tokens_n: Tensor,
    logprobs_n: Tensor,
    last_token_n: Tensor,
    kv_len_n: Tensor,
    position_n: Tensor,
    drawn_K2n: Tensor,
    step: Tensor,
) -> None:
    """Note what was drawn, and what the next step begins with."""
    drawn = torch.stack([tokens_n.double(), logprobs_n.double()])
    drawn_K2n.index_copy_(0, step, drawn[None])
    last_token_n.copy_(tokens_n)
    kv_len_n.add_(1)
    position_n.add_(1)
    step.add_(1)


def padded_size(count: int, most: int) -> int:
    """The graph's batch size for `count` answers: eighths of the most, and small powers of two.

    Not 1, for which layers would be compiled once more.
    """
    count = min(max(count, 2), most)
    step = max(most // 8, 1)
    powers = [2**i for i in range(most.bit_length()) if 2**i < step]
    return next(size for size in [*powers, *range(step, most, step), most] if size >= count)


def table_width(pages: int) -> int:
    """8, 32, 128, 512, ...: each is a graph of its own, so there are few."""
    width = 8
    while width < pages:
        width *= 4
    return width
