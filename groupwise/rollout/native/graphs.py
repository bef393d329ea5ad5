"""CUDA graphs of a decode step: a few batch sizes, captured once, replayed for every token.

A step of a small model is hundreds of kernels of a few microseconds each; launched from Python the
GPU would wait. The graph reads and writes fixed buffers, which also carry a burst of steps: each
replay feeds the token that the one before drew.
"""

import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from groupwise.compat.torch_compile import mark_rows_dynamic
from groupwise.policy.attention import use_attention
from groupwise.policy.load import Policy
from groupwise.rollout.native.cache import SlotCache
from groupwise.rollout.native.layers import CompiledLayers, why_not_compiled
from groupwise.rollout.native.lines import Lines
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import draw
from groupwise.types import Sampling

log = logging.getLogger("groupwise")

BURST = 8
"""Steps between two looks at the results. Tokens drawn past an answer's end are dropped."""


@dataclass(frozen=True)
class Buffers:
    """Fixed places that graphs read and write, one line per slot."""

    token_S: Tensor
    fill_S: Tensor
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
            zeros(BURST, slots),
            zeros(BURST, slots, dtype=torch.float32),
            zeros(1),
        )


class Graphs:
    def __init__(self, policy: Policy, compile_layers: bool) -> None:
        self.policy = policy
        self.compile_layers = compile_layers
        self.layers: CompiledLayers | None = None
        self._draw = torch.compile(draw)
        self.buffers: Buffers | None = None
        self.captured: dict[tuple[int, Sampling], torch.cuda.CUDAGraph] = {}
        self.weights: tuple[int, ...] = ()
        self.pool = None

    def draw(
        self, logits_nV: Tensor, keys: Tensor, positions: Tensor, sampling: Sampling, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`draw`, compiled once for any number of rows and this vocabulary."""
        mark_rows_dynamic(logits_nV, keys, positions, seen)
        return self._draw(logits_nV, keys, positions, sampling, seen)

    def forget(self) -> None:
        """The cache was replaced, or the weights: graphs that point into them are void."""
        self.captured.clear()
        self.buffers = self.pool = None

    def follow_weights(self) -> None:
        """Weights that are now elsewhere in memory void the graphs and the joined layers."""
        if self.captured and _places(self.policy) != self.weights:
            self.forget()
            self.layers = None

    def run(
        self, cache: SlotCache, lines: Lines, moved: bool, sampling: Sampling, steps: int
    ) -> tuple[Tensor, Tensor]:
        """`steps` tokens and log-probs for each active line, on the CPU: (n, steps) each.

        Unless answers have `moved` since the last call, the buffers hold what it left there.
        """
        count = lines.active
        size = bucket(count, cache.slots)
        captured = len(self.captured)
        graph = self._graph(cache, size, replace(sampling, max_tokens=0, stop=()))
        buffers = self.buffers
        assert buffers is not None
        if moved or len(self.captured) > captured:
            self._load(buffers, lines, size)
        buffers.step.zero_()
        for _ in range(steps):
            graph.replay()
        tokens = buffers.tokens_KS[:steps, :count].T.cpu()
        return tokens, buffers.logprobs_KS[:steps, :count].T.cpu()

    def _load(self, buffers: Buffers, lines: Lines, size: int) -> None:
        count = lines.active
        state = np.stack([lines.newest, lines.fill, lines.count[:count]])
        token, fill, position = torch.from_numpy(state).to(buffers.fill_S.device)
        buffers.token_S[:count] = token
        buffers.fill_S[:count] = fill
        buffers.fill_S[count:size] = 0  # spare rows write to the start of slots that are free
        buffers.position_S[:count] = position
        buffers.keys_S2[:count] = key_tensor(lines.keys[:count].tolist(), token.device)

    def _graph(self, cache: SlotCache, size: int, sampling: Sampling) -> torch.cuda.CUDAGraph:
        if (size, sampling) in self.captured:
            return self.captured[size, sampling]
        if self.buffers is None:
            self.buffers = Buffers.on(cache.device, cache.slots)
        self._prepare(cache)
        try:
            self._rehearse(self.buffers, cache, size, sampling)
        except Exception as error:  # a compiler can fail in any way; the plain layers always work
            if self.layers is None:
                raise
            log.warning("sampling without torch.compile: %s", str(error).split("\n")[0])
            self.layers, self.compile_layers = None, False
            self._rehearse(self.buffers, cache, size, sampling)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._step(cache, size, sampling)
        self.pool = self.pool or graph.pool()
        self.captured[size, sampling] = graph
        return graph

    def _rehearse(self, buffers: Buffers, cache: SlotCache, size: int, sampling: Sampling) -> None:
        """Run the step that will be captured: kernels are compiled, libraries find their memory.

        Slots in use hold keys that must not be overwritten: it writes past every answer.
        """
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                buffers.fill_S[:size] = cache.length - 1
                buffers.step.zero_()
                self._step(cache, size, sampling)
        torch.cuda.current_stream().wait_stream(side)

    def _prepare(self, cache: SlotCache) -> None:
        """Compile the layers if that is wanted and possible; note where the weights are."""
        if self.compile_layers and self.layers is None:
            problem = why_not_compiled(self.policy.model, cache)
            if problem is None:
                self.layers = CompiledLayers(self.policy.model)
            else:
                log.info("sampling without torch.compile: %s", problem)
                self.compile_layers = False
        self.weights = _places(self.policy)

    def _step(self, cache: SlotCache, size: int, sampling: Sampling) -> None:
        buffers = self.buffers
        assert buffers is not None
        cache.begin_step(buffers.fill_S[:size], cache.length)
        compiled = self.layers.instead(cache) if self.layers else nullcontext()
        with use_attention(self.policy.model, cache), compiled:
            hidden = self.policy.body(
                input_ids=buffers.token_S[:size, None], position_ids=buffers.fill_S[:size, None]
            )
        logits = self.policy.head(hidden[:, -1])
        nothing = torch.zeros(size, 0, dtype=torch.long, device=logits.device)
        tokens, logprobs = self.draw(
            logits, buffers.keys_S2[:size], buffers.position_S[:size], sampling, nothing
        )
        buffers.token_S[:size] = tokens
        buffers.tokens_KS[:, :size].index_copy_(0, buffers.step, tokens[None])
        buffers.logprobs_KS[:, :size].index_copy_(0, buffers.step, logprobs[None])
        buffers.fill_S[:size] += 1
        buffers.position_S[:size] += 1
        buffers.step.add_(1)


def _places(policy: Policy) -> tuple[int, ...]:
    return tuple(parameter.data_ptr() for parameter in policy.model.parameters())


def bucket(count: int, slots: int) -> int:
    """The batch size to run `count` answers at: eighths of the slots, and small powers of two."""
    step = max(slots // 8, 1)
    powers = [2**i for i in range(slots.bit_length()) if 2**i < step]
    return next(size for size in [*powers, *range(step, slots, step), slots] if size >= count)
