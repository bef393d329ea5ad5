"""CUDA graphs of a decode step: a few batch sizes, captured once, replayed for every token.

A step of a small model is hundreds of kernels of a few microseconds each; launched from Python the
GPU would wait. The graph reads and writes fixed buffers, which also carry a burst of steps: each
replay feeds the token that the one before drew.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from groupwise.policy.load import Policy
from groupwise.rollout.native.attention import attending
from groupwise.rollout.native.cache import SlotCache
from groupwise.rollout.sampling import draw
from groupwise.types import Sampling

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
    logps_KS: Tensor
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
    def __init__(self, policy: Policy, compile_body: bool) -> None:
        self.policy = policy
        self.body: Callable[..., Tensor] = policy.body
        if compile_body:
            self.body = torch.compile(policy.body, dynamic=True)
        self.draw = torch.compile(draw, dynamic=True)
        self.buffers: Buffers | None = None
        self.captured: dict[tuple[int, Sampling], torch.cuda.CUDAGraph] = {}
        self.pool = None

    def forget(self) -> None:
        """The cache was replaced: graphs that point into it are void."""
        self.captured.clear()
        self.buffers = self.pool = None

    def run(
        self,
        cache: SlotCache,
        newest: Tensor,
        fill: Tensor,
        positions: Tensor,
        keys: Tensor,
        sampling: Sampling,
        steps: int,
    ) -> tuple[Tensor, Tensor]:
        """`steps` tokens and log-probs for each active slot, on the CPU: (n, steps) each."""
        count = len(newest)
        size = bucket(count, cache.slots)
        graph = self._graph(cache, size, replace(sampling, max_tokens=0, stop=()))
        buffers = self.buffers
        assert buffers is not None
        buffers.token_S[:count].copy_(newest, non_blocking=True)
        buffers.fill_S[:count].copy_(fill, non_blocking=True)
        buffers.fill_S[count:size] = 0  # spare rows write to the start of slots that are free
        buffers.position_S[:count].copy_(positions, non_blocking=True)
        buffers.keys_S2[:count].copy_(keys, non_blocking=True)
        buffers.step.zero_()
        for _ in range(steps):
            graph.replay()
        tokens = buffers.tokens_KS[:steps, :count].T.cpu()
        return tokens, buffers.logps_KS[:steps, :count].T.cpu()

    def _graph(self, cache: SlotCache, size: int, sampling: Sampling) -> torch.cuda.CUDAGraph:
        if (size, sampling) in self.captured:
            return self.captured[size, sampling]
        if self.buffers is None:
            self.buffers = Buffers.on(cache.device, cache.slots)
        # Slots in use hold keys that a rehearsal would overwrite: it writes past every answer.
        self.buffers.fill_S[:size] = cache.length - 1
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.buffers.step.zero_()
                self._step(cache, size, sampling)
                self.buffers.fill_S[:size] = cache.length - 1
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._step(cache, size, sampling)
        self.pool = self.pool or graph.pool()
        self.captured[size, sampling] = graph
        return graph

    def _step(self, cache: SlotCache, size: int, sampling: Sampling) -> None:
        buffers = self.buffers
        assert buffers is not None
        cache.begin_step(buffers.fill_S[:size], cache.length)
        with attending(self.policy.model, cache):
            hidden = self.body(
                input_ids=buffers.token_S[:size, None], position_ids=buffers.fill_S[:size, None]
            )
        logits = self.policy.head(hidden[:, -1])
        nothing = torch.zeros(size, 0, dtype=torch.long, device=logits.device)
        tokens, logps = self.draw(
            logits, buffers.keys_S2[:size], buffers.position_S[:size], sampling, nothing
        )
        buffers.token_S[:size] = tokens
        buffers.tokens_KS[:, :size].index_copy_(0, buffers.step, tokens[None])
        buffers.logps_KS[:, :size].index_copy_(0, buffers.step, logps[None])
        buffers.fill_S[:size] += 1
        buffers.position_S[:size] += 1
        buffers.step.add_(1)


def bucket(count: int, slots: int) -> int:
    """The batch size to run `count` answers at: eighths of the slots, and small powers of two."""
    step = max(slots // 8, 1)
    powers = [2**i for i in range(slots.bit_length()) if 2**i < step]
    return next(size for size in [*powers, *range(step, slots, step), slots] if size >= count)
