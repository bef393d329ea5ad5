"""Decode graphs whose replays run the model at once, on any device.

What is launched, arranged, read and dropped is the real code's; captured kernels are not.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.policy.attention import use_attention
from groupwise.policy.policy import Policy
from groupwise.rollout.native.cuda_graphs import Buffers, DecodeGraphs, GraphKey, end_step
from groupwise.rollout.native.decode import Decoder
from groupwise.rollout.native.decode_attention import DecodeAttention
from groupwise.rollout.native.limits import ADMIT_EVERY, MULTI_STEP
from groupwise.rollout.sampling import sample_tokens
from groupwise.types import Sampling


@dataclass
class Replay:
    graphs: "EagerGraphs"
    attention: DecodeAttention
    key: GraphKey

    def replay(self) -> None:
        self.graphs.eager_step(self.attention, self.key)


class Done:
    def synchronize(self) -> None:
        pass


class EagerGraphs(DecodeGraphs):
    def __init__(self, policy: Policy, max_batch: int) -> None:
        super().__init__(policy, max_batch, compile_layers=False)
        self.order = np.zeros(0, np.int64)

    def sample(
        self, logits_nV: Tensor, keys: Tensor, positions: Tensor, sampling: Sampling, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        return sample_tokens(logits_nV, keys, positions, sampling, seen)

    def _graph(self, attention: DecodeAttention, key: GraphKey) -> Any:
        if key not in self.captured:
            self.buffers = self.buffers or Buffers.on(attention.cache.device, self.max_batch)
            self.answers, self.loaded_table = (), None
            made: Any = Replay(self, attention, key)
            self.captured[key] = made
        return self.captured[key]

    def _copied_to_host(self, buffers: Buffers, steps: int) -> Any:
        return buffers.drawn_K2S[:steps].clone(), Done()

    def eager_step(self, attention: DecodeAttention, key: GraphKey) -> None:
        buffers, size, cache = self.buffers, len(self.answers), attention.cache  # without padding
        assert buffers is not None
        if len(self.order) != len(cache.offsets):
            self.order = np.argsort(cache.offsets)
        offsets = buffers.page_table(key.table_width)[:size].numpy()
        table = self.order[np.searchsorted(cache.offsets, offsets, sorter=self.order)]
        kv_lens = buffers.kv_len_S[:size].numpy().copy()
        own = table[np.arange(size), kv_lens // cache.page] > 0  # others are past their ends
        tokens, logprobs = torch.zeros(size, dtype=torch.long), torch.zeros(size)
        if own.any():
            chosen = torch.from_numpy(np.flatnonzero(own))
            tokens[chosen], logprobs[chosen] = self._drawn(
                attention, table[own], kv_lens[own], chosen, key
            )
        last_token, kv_len, position = buffers.last_token_S, buffers.kv_len_S, buffers.position_S
        drawn = buffers.drawn_K2S[:, :, :size]
        end_step(
            tokens, logprobs, last_token[:size], kv_len[:size], position[:size], drawn, buffers.step
        )

    def _drawn(
        self,
        attention: DecodeAttention,
        table: np.ndarray,
        kv_lens: np.ndarray,
        rows: Tensor,
        key: GraphKey,
    ) -> tuple[Tensor, Tensor]:
        buffers = self.buffers
        assert buffers is not None
        counts = kv_lens // attention.cache.page + 1
        table = table[:, : counts.max()] * (np.arange(counts.max()) < counts[:, None])
        attention.begin_step(table, counts, kv_lens)
        with use_attention(self.policy.model, attention):
            hidden = self.policy.body(
                input_ids=buffers.last_token_S[rows, None],
                position_ids=buffers.kv_len_S[rows, None],
            )
        logits, nothing = self.policy.head(hidden[:, -1]), torch.zeros(len(rows), 0).long()
        keys, positions = buffers.keys_S2[rows], buffers.position_S[rows]
        return sample_tokens(logits, keys, positions, key.sampling, nothing)


class EagerDecoder(Decoder):
    """In place of the engine's own: several steps at once, the next launched ahead."""

    def __init__(self, policy: Policy, attention: DecodeAttention, *_: Any) -> None:
        super().__init__(policy, attention, None)
        self.graphs: EagerGraphs = EagerGraphs(policy, 64)
        self.most_steps, self.admit_every = MULTI_STEP, ADMIT_EVERY
