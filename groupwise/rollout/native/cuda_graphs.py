"""CUDA graphs of a decode step: a few batch sizes, captured once, replayed for every token.

A step of a small model is hundreds of kernels of a few microseconds each; launched from Python the
GPU would wait. The graph reads and writes fixed buffers, so that several steps run without the
host: each replay takes the token that the one before sampled.
"""

import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from groupwise.compat.torch_compile import mark_rows_dynamic
from groupwise.policy.attention import use_attention
from groupwise.policy.policy import Policy
from groupwise.rollout.native.compiled_decode import CompiledDecodeLayers, compile_problem
from groupwise.rollout.native.kv_cache import SlotKVCache
from groupwise.rollout.native.limits import MULTI_STEP
from groupwise.rollout.native.running_batch import RunningBatch
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import sample_tokens
from groupwise.types import Sampling

log = logging.getLogger("groupwise")


@dataclass(frozen=True)
class Buffers:
    """Fixed tensors that graphs read and write: S slots, K steps."""

    last_token_S: Tensor
    kv_len_S: Tensor
    position_S: Tensor
    keys_S2: Tensor
    tokens_KS: Tensor
    logprobs_KS: Tensor
    step: Tensor

    @staticmethod
    def on(device: torch.device, slots: int) -> "Buffers":
        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        return Buffers(
            zeros(slots),
            zeros(slots),
            zeros(slots),
            zeros(slots, 2, dtype=torch.int32),
            zeros(MULTI_STEP, slots),
            zeros(MULTI_STEP, slots, dtype=torch.float32),
            zeros(1),
        )


class DecodeGraphs:
    def __init__(self, policy: Policy, compile_layers: bool) -> None:
        self.policy = policy
        self.compile_layers = compile_layers
        self.layers: CompiledDecodeLayers | None = None
        self._sample = torch.compile(sample_tokens)
        self.buffers: Buffers | None = None
        self.captured: dict[tuple[int, Sampling], torch.cuda.CUDAGraph] = {}
        self.weights: tuple[int, ...] = ()
        self.pool = None

    def sample(
        self, logits_nV: Tensor, keys: Tensor, positions: Tensor, sampling: Sampling, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`sample_tokens`, compiled once for any number of rows and this vocabulary."""
        mark_rows_dynamic(logits_nV, keys, positions, seen)
        return self._sample(logits_nV, keys, positions, sampling, seen)

    def reset(self) -> None:
        """The cache was replaced, or the weights: graphs that point into them are invalid."""
        self.captured.clear()
        self.buffers = self.pool = None

    def follow_weights(self) -> None:
        """Weights that are now elsewhere in memory invalidate the graphs and fused projections."""
        if self.captured and _addresses(self.policy) != self.weights:
            self.reset()
            self.layers = None

    def run(
        self, cache: SlotKVCache, batch: RunningBatch, changed: bool, sampling: Sampling, steps: int
    ) -> tuple[Tensor, Tensor]:
        """`steps` tokens and log-probs for each running answer, on the CPU: (n, steps) each.

        Unless the batch has `changed` since the last call, the buffers hold what it left there.
        """
        count = batch.size
        size = padded_size(count, cache.slots)
        captured = len(self.captured)
        graph = self._graph(cache, size, replace(sampling, max_tokens=0, stop=()))
        buffers = self.buffers
        assert buffers is not None
        if changed or len(self.captured) > captured:
            self._load(buffers, batch, size)
        buffers.step.zero_()
        for _ in range(steps):
            graph.replay()
        tokens = buffers.tokens_KS[:steps, :count].T.cpu()
        return tokens, buffers.logprobs_KS[:steps, :count].T.cpu()

    def _load(self, buffers: Buffers, batch: RunningBatch, size: int) -> None:
        count = batch.size
        state = np.stack([batch.last_tokens, batch.kv_lens, batch.output_lens[:count]])
        token, kv_len, position = torch.from_numpy(state).to(buffers.kv_len_S.device)
        buffers.last_token_S[:count] = token
        buffers.kv_len_S[:count] = kv_len
        buffers.kv_len_S[count:size] = 0  # padding rows write to the start of free slots
        buffers.position_S[:count] = position
        buffers.keys_S2[:count] = key_tensor(batch.keys[:count].tolist(), token.device)

    def _graph(self, cache: SlotKVCache, size: int, sampling: Sampling) -> torch.cuda.CUDAGraph:
        if (size, sampling) in self.captured:
            return self.captured[size, sampling]
        if self.buffers is None:
            self.buffers = Buffers.on(cache.device, cache.slots)
        self._prepare(cache)
        try:
            self._warm_up(self.buffers, cache, size, sampling)
        except Exception as error:  # a compiler can fail in any way; the plain layers always work
            if self.layers is None:
                raise
            log.warning("sampling without torch.compile: %s", str(error).split("\n")[0])
            self.layers, self.compile_layers = None, False
            self._warm_up(self.buffers, cache, size, sampling)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._step(cache, size, sampling)
        self.pool = self.pool or graph.pool()
        self.captured[size, sampling] = graph
        return graph

    def _warm_up(self, buffers: Buffers, cache: SlotKVCache, size: int, sampling: Sampling) -> None:
        """Run the step that will be captured: kernels are compiled, libraries allocate memory.

        Slots in use hold keys that must not be overwritten: it writes past every answer.
        """
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                buffers.kv_len_S[:size] = cache.slot_length - 1
                buffers.step.zero_()
                self._step(cache, size, sampling)
        torch.cuda.current_stream().wait_stream(side)

    def _prepare(self, cache: SlotKVCache) -> None:
        """Compile the layers if that is wanted and possible; note the weights' addresses."""
        if self.compile_layers and self.layers is None:
            problem = compile_problem(self.policy.model, cache)
            if problem is None:
                self.layers = CompiledDecodeLayers(self.policy.model)
            else:
                log.info("sampling without torch.compile: %s", problem)
                self.compile_layers = False
        self.weights = _addresses(self.policy)

    def _step(self, cache: SlotKVCache, size: int, sampling: Sampling) -> None:
        buffers = self.buffers
        assert buffers is not None
        cache.begin_step(buffers.kv_len_S[:size], cache.slot_length)
        compiled = self.layers.in_use(cache) if self.layers else nullcontext()
        with use_attention(self.policy.model, cache), compiled:
            hidden = self.policy.body(
                input_ids=buffers.last_token_S[:size, None],
                position_ids=buffers.kv_len_S[:size, None],
            )
        logits = self.policy.head(hidden[:, -1])
        no_tokens = torch.zeros(size, 0, dtype=torch.long, device=logits.device)
        tokens, logprobs = self.sample(
            logits, buffers.keys_S2[:size], buffers.position_S[:size], sampling, no_tokens
        )
        buffers.last_token_S[:size] = tokens
        buffers.tokens_KS[:, :size].index_copy_(0, buffers.step, tokens[None])
        buffers.logprobs_KS[:, :size].index_copy_(0, buffers.step, logprobs[None])
        buffers.kv_len_S[:size] += 1
        buffers.position_S[:size] += 1
        buffers.step.add_(1)


def _addresses(policy: Policy) -> tuple[int, ...]:
    return tuple(parameter.data_ptr() for parameter in policy.model.parameters())


def padded_size(count: int, slots: int) -> int:
    """The graph's batch size for `count` answers: eighths of the slots, and small powers of two."""
    step = max(slots // 8, 1)
    powers = [2**i for i in range(slots.bit_length()) if 2**i < step]
    return next(size for size in [*powers, *range(step, slots, step), slots] if size >= count)
