"""Decode steps: the next token, or the next few, of every running answer.

The model sees all rows at once. Tokens are drawn for the rows of one `Sampling` at a time, as
answers with different ones may run together. On CUDA a step is a replay of a graph, which draws as
well: there the rows of each `Sampling` take their steps in turn.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from groupwise.policy.attention import use_attention
from groupwise.policy.compiled import compiled_layers
from groupwise.policy.policy import Policy
from groupwise.rollout.native.cuda_graphs import DecodeGraphs
from groupwise.rollout.native.decode_attention import DecodeAttention
from groupwise.rollout.native.limits import LONG_MULTI_STEP
from groupwise.rollout.native.running_batch import RunningBatch
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import sample_tokens

Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Rows, and their new tokens and log-probs: (n, steps) each."""


class Decoder:
    def __init__(
        self,
        policy: Policy,
        attention: DecodeAttention,
        graphs: DecodeGraphs | None,
        compiled: bool = False,
    ) -> None:
        self.policy, self.attention, self.compiled = policy, attention, compiled
        self.graphs = graphs if attention.has_kernel else None
        self.most_steps = 1 if self.graphs is None else LONG_MULTI_STEP

    def decode(self, batch: RunningBatch, most_steps: int) -> Iterator[Drawn]:
        """Some more tokens for all rows, which own the pages for `most_steps`."""
        if self.graphs is None:
            yield from self._forward(batch, np.arange(batch.size))
            return
        for sampling, rows in batch.by_sampling():
            if sampling.repetition_penalty == 1:
                most = int((batch.max_tokens[rows] - batch.output_lens[rows]).max())
                steps = min(most_steps, most)
                yield rows, *self.graphs.run(self.attention, batch, rows, sampling, steps)
            else:
                yield from self._forward(batch, rows)

    def _forward(self, batch: RunningBatch, rows: np.ndarray) -> Iterator[Drawn]:
        """One step of these rows without a graph."""
        kv_lens, counts = batch.kv_lens[rows], batch.page_counts[rows]
        self.attention.begin_step(batch.table[rows, : counts.max()], counts, kv_lens)
        inputs = torch.from_numpy(np.stack([batch.last_tokens[rows], kv_lens]))
        tokens, positions = inputs.to(self.policy.device)[:, :, None]
        model = self.policy.model
        with use_attention(model, self.attention), compiled_layers(model, self.compiled):
            hidden = self.policy.body(input_ids=tokens, position_ids=positions)
        yield from self.draw(batch, rows, self.policy.head(hidden[:, -1]))

    def draw(self, batch: RunningBatch, rows: np.ndarray, logits_nV: Tensor) -> Iterator[Drawn]:
        """One token for each of these rows, from its logits."""
        device = self.policy.device
        sample = sample_tokens if self.graphs is None else self.graphs.sample
        for sampling, same in batch.by_sampling():
            _, chosen, _ = np.intersect1d(rows, same, assume_unique=True, return_indices=True)
            if not len(chosen):
                continue
            own = rows[chosen]
            whole = len(own) == len(rows)
            logits = logits_nV if whole else logits_nV[torch.from_numpy(chosen).to(device)]
            keys = key_tensor(batch.keys[own].tolist(), device)
            positions = torch.from_numpy(batch.output_lens[own]).to(device)
            seen = self._seen_tokens(batch, own, sampling.repetition_penalty != 1)
            tokens, logprobs = sample(logits, keys, positions, sampling, seen)
            yield own, tokens[:, None].cpu().numpy(), logprobs[:, None].cpu().numpy()

    def _seen_tokens(self, batch: RunningBatch, rows: np.ndarray, wanted: bool) -> Tensor:
        """Prompt and answer so far, rows padded with their own first token; or nothing."""
        device = self.policy.device
        if not wanted:
            return torch.zeros(len(rows), 0, dtype=torch.long, device=device)
        seen = [
            [*batch.answers[row].prompt.tolist(), *batch.tokens_of(row).tolist()] for row in rows
        ]
        width = max(len(row) for row in seen)
        padded = [row + row[:1] * (width - len(row)) for row in seen]
        return torch.tensor(padded, device=device)
