"""CUDA graphs of a decode step: a few batch sizes, captured once, replayed for every token.

A step of a small model is hundreds of kernels of a few microseconds each; launched from Python the
GPU would wait. The graph reads and writes fixed buffers, so that several steps run without the
host: each replay takes the token that the one before sampled. Page tables have a few widths, so
that short answers are not attended to as long ones would be.
"""

import logging
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from groupwise.compat.torch_compile import mark_rows_dynamic
from groupwise.policy.attention import use_attention
from groupwise.policy.policy import Policy
from groupwise.rollout.native.compiled_decode import CompiledDecodeLayers, compile_problem
from groupwise.rollout.native.decode_attention import DecodeAttention
from groupwise.rollout.native.fused_layers import FusedLayers, fused_layers
from groupwise.rollout.native.limits import LONG_MULTI_STEP
from groupwise.rollout.native.running_batch import RunningBatch
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import sample_tokens
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
            # A column more than rows: code that is compiled for some of the rows serves all, too.
            zeros(LONG_MULTI_STEP, 2, rows + 1, dtype=torch.float64),
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


class DecodeGraphs:
    def __init__(self, policy: Policy, max_batch: int, compile_layers: bool) -> None:
        self.policy, self.max_batch = policy, max_batch
        self.compile_layers = compile_layers
        self.layers: FusedLayers | CompiledDecodeLayers | None = None
        self._sample = torch.compile(sample_tokens)
        self._end_step = torch.compile(end_step, dynamic=True) if compile_layers else end_step
        self.buffers: Buffers | None = None
        self.captured: dict[GraphKey, torch.cuda.CUDAGraph] = {}
        self.weights: tuple[int, ...] = ()
        self.pool = None
        self.loaded: tuple[int, GraphKey] | None = None
        """Which rows of the batch, for which graph, the buffers hold."""
        self.loaded_paging = 0

    def sample(
        self, logits_nV: Tensor, keys: Tensor, positions: Tensor, sampling: Sampling, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`sample_tokens`, compiled once for any number of rows and this vocabulary."""
        mark_rows_dynamic(logits_nV, keys, positions, seen)
        return self._sample(logits_nV, keys, positions, sampling, seen)

    def reset(self) -> None:
        """The cache was replaced, or the weights: graphs that point into them are invalid."""
        self.captured.clear()
        self.buffers = self.pool = self.loaded = None

    def follow_weights(self) -> None:
        """Weights that are now elsewhere in memory invalidate the graphs and fused projections."""
        if self.captured and weight_addresses(self.policy) != self.weights:
            self.reset()
            self.layers = None

    def run(
        self,
        attention: DecodeAttention,
        batch: RunningBatch,
        rows: np.ndarray,
        sampling: Sampling,
        steps: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """`steps` tokens and log-probs for each of these rows: (n, steps) each.

        The rows own the pages for them. What is written past an answer's end goes to page 0.
        """
        count, page = len(rows), attention.cache.page
        width = table_width(-(-(int(batch.kv_lens[rows].max()) + steps) // page))
        key = GraphKey(padded_size(count, self.max_batch), width, sampling)
        graph = self._graph(attention, key)
        buffers = self.buffers
        assert buffers is not None
        if self.loaded != (batch.membership, key):
            self._load(buffers, batch, rows, key.rows)
        if self.loaded != (batch.membership, key) or self.loaded_paging != batch.paging:
            self._load_page_table(buffers, attention, batch, rows, key)
        self.loaded, self.loaded_paging = (batch.membership, key), batch.paging
        buffers.step.zero_()
        for _ in range(steps):
            graph.replay()
        tokens, logprobs = buffers.drawn_K2S[:steps].cpu().numpy()[:, :, :count].transpose(1, 2, 0)
        return tokens.astype(np.int64), logprobs.astype(np.float32)

    def _load(self, buffers: Buffers, batch: RunningBatch, rows: np.ndarray, size: int) -> None:
        count = len(rows)
        state = np.stack([batch.last_tokens[rows], batch.kv_lens[rows], batch.output_lens[rows]])
        token, kv_len, position = torch.from_numpy(state).to(buffers.kv_len_S.device)
        buffers.last_token_S[:count] = token
        buffers.kv_len_S[:count] = kv_len
        buffers.kv_len_S[count:size] = 0
        buffers.position_S[:count] = position
        buffers.keys_S2[:count] = key_tensor(batch.keys[rows].tolist(), token.device)

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
        buffers.page_table(key.table_width)[: key.rows] = torch.from_numpy(table).to(
            buffers.kv_len_S.device
        )

    def _graph(self, attention: DecodeAttention, key: GraphKey) -> torch.cuda.CUDAGraph:
        if key in self.captured:
            return self.captured[key]
        if self.buffers is None:
            self.buffers = Buffers.on(attention.cache.device, self.max_batch)
        self.loaded = None
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

    def _prepare(self, attention: DecodeAttention) -> None:
        """Compile the layers if that is wanted and possible; note the weights' addresses."""
        if self.compile_layers and self.layers is None:
            self.layers = fused_layers(self.policy)
        if self.compile_layers and self.layers is None:
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
        self._end_step(tokens, logprobs, last_token, kv_len, position, drawn, buffers.step)


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


def weight_addresses(policy: Policy) -> tuple[int, ...]:
    return tuple(parameter.data_ptr() for parameter in policy.model.parameters())


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
