"""Decode steps: the next token, or the next few, of every running answer.

The model sees all rows at once. Tokens are drawn for the rows of one `Sampling` at a time, as
answers with different ones may run together. On CUDA a step is a replay of a graph, which draws as
well: there the rows of each `Sampling` take their steps in turn; where all have the same, the next
steps are launched before these are read.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from groupwise.policy.attention import use_attention
from groupwise.policy.compiled import compiled_layers
from groupwise.policy.policy import Policy
from groupwise.rollout.native.cuda_graphs import DecodeGraphs, LaunchedSteps
from groupwise.rollout.native.decode_attention import DecodeAttention
from groupwise.rollout.native.fused_layers import FusedLayers
from groupwise.rollout.native.limits import ADMIT_EVERY, MULTI_STEP
from groupwise.rollout.native.running_batch import RunningBatch
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import sample_tokens


class Drawn(NamedTuple):
    """Rows, and their new tokens and log-probs: (n, steps) each."""

    rows: np.ndarray
    tokens: np.ndarray
    logprobs: np.ndarray
    version: int | None = None
    """Of the weights that drew them; None: the present ones."""


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
        self.layers: FusedLayers | None = None
        """What runs the model's layers on a CPU, if not they themselves; on CUDA graphs have it."""
        self.most_steps = 1 if self.graphs is None else MULTI_STEP
        self.admit_every = 0 if self.graphs is None else ADMIT_EVERY
        self.launched: LaunchedSteps | None = None
        """Steps that are not read yet."""

    @property
    def unread(self) -> int:
        """How many steps were launched and not read."""
        return self.launched.steps if self.launched else 0

    @property
    def prefill_layers(self) -> FusedLayers | None:
        """What runs the model's layers in a prefill, if not they themselves."""
        return self.graphs.fused if self.graphs is not None else None

    def decode(
        self, batch: RunningBatch, version: int = 0, *, ahead: bool = False
    ) -> Iterator[Drawn]:
        """Some more tokens for all rows, which own the pages for `most_steps` more than is known.

        `ahead`: they own the pages for as many again, and the next steps are to be launched before
        these are read.
        """
        if self.graphs is None:
            yield from self._forward(batch, np.arange(batch.size))
            return
        samplings = batch.by_sampling()
        (sampling, rows), *others = samplings
        if others or sampling.repetition_penalty != 1:
            assert not self.unread  # nothing is launched ahead of them, nor when they are admitted
            for sampling, rows in samplings:
                if sampling.repetition_penalty != 1:
                    yield from self._forward(batch, rows)
                else:
                    self.launched = self._launch(self.graphs, batch, version, rows)
                    yield from self.read(batch)
            return
        if self.launched is None:
            self.launched = self._launch(self.graphs, batch, version, rows)
        following = None
        if ahead:
            following = self._launch(self.graphs, batch, version, rows)
        yield from self.read(batch)
        self.launched = following

    def read(self, batch: RunningBatch) -> Iterator[Drawn]:
        """The tokens of launched steps, for those of their answers that still run."""
        launched, self.launched = self.launched, None
        if launched is None:
            return
        row_of = {answer: row for row, answer in enumerate(batch.answers)}
        running = [n for n, answer in enumerate(launched.answers) if answer in row_of]
        if running:
            rows = np.array([row_of[launched.answers[n]] for n in running])
            tokens, logprobs = launched.read()
            yield Drawn(rows, tokens[running], logprobs[running], launched.version)

    def _launch(
        self, graphs: DecodeGraphs, batch: RunningBatch, version: int, rows: np.ndarray
    ) -> LaunchedSteps | None:
        """The next steps after those that are not read yet; None where there are none to take."""
        sampling, unread = batch.answers[rows[0]].sampling, self.unread
        longest = int((batch.max_tokens[rows] - batch.output_lens[rows]).max()) - unread
        steps = min(self.most_steps, longest)
        if steps <= 0:
            return None
        return graphs.launch(self.attention, batch, rows, sampling, steps, version, unread)

    def _forward(self, batch: RunningBatch, rows: np.ndarray) -> Iterator[Drawn]:
        """One step of these rows without a graph."""
        kv_lens, counts = batch.kv_lens[rows], batch.page_counts[rows]
        self.attention.begin_step(batch.table[rows, : counts.max()], counts, kv_lens)
        inputs = torch.from_numpy(np.stack([batch.last_tokens[rows], kv_lens]))
        tokens, positions = inputs.to(self.policy.device)[:, :, None]
        model = self.policy.model
        if self.layers is not None:
            layers = self.layers.in_use(self.attention)
        else:
            layers = compiled_layers(model, self.compiled)
        with use_attention(model, self.attention), layers:
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
            yield Drawn(own, tokens[:, None].cpu().numpy(), logprobs[:, None].cpu().numpy())

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
