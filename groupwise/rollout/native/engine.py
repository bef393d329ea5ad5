"""The native engine: continuous batching over slots, in process, on the policy's own weights.

Answers wait in a queue. Whenever a slot is free the next answer is admitted; its prompt was
prefilled once for its whole group. Each decode step takes one token per running answer through the
model and samples the next with that answer's key, so an answer does not depend on what else is in
the batch. On CUDA several steps run as replays of a graph; what is sampled past an end is dropped.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from groupwise.policy.attention import use_attention
from groupwise.policy.compiled import compiled_layers, decoder_layers
from groupwise.policy.policy import Policy
from groupwise.rollout.native.cuda_graphs import DecodeGraphs
from groupwise.rollout.native.fused_projections import FusedProjections
from groupwise.rollout.native.kv_cache import SlotKVCache, bytes_per_slot
from groupwise.rollout.native.limits import CACHE_SHARE, MULTI_STEP, PREFILL_TOKENS
from groupwise.rollout.native.memory import free_bytes
from groupwise.rollout.native.prefill import Prefill
from groupwise.rollout.native.running_batch import RunningBatch
from groupwise.rollout.native.transposed_linear import use_transposed_linear
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import sample_tokens
from groupwise.rollout.stopping import StopStrings
from groupwise.types import Completion, Request, Sampling


@dataclass
class PrefilledPrompt:
    """A prompt whose answers are not all admitted yet; `index` is its place in `prefill`."""

    request: int
    prefill: Prefill
    index: int
    logits_V: Tensor
    waiting: deque[int]


class NativeEngine:
    def __init__(
        self,
        policy: Policy,
        max_batch: int,
        compile_layers: bool = False,
        graphs: bool = True,
    ) -> None:
        self.policy = policy
        self.max_batch = max_batch
        self.version = 0
        self.kv_cache: SlotKVCache | None = None
        self.fused: FusedProjections | None = None
        self.graphs = None
        self.compiled = compile_layers and policy.device.type == "cpu"
        """Whether the layers that run without graphs are compiled."""
        if graphs and policy.device.type == "cuda":
            self.graphs = DecodeGraphs(policy, compile_layers)

    def sync(self, version: int) -> None:
        self.version = version  # it samples from the policy itself: nothing to copy

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> list[tuple[Completion, ...]]:
        training = self.policy.model.training
        self.policy.model.eval()
        if self.graphs is not None:
            self.graphs.follow_weights()
        try:
            with self._fused_projections(), use_transposed_linear(self.policy.model):
                return _Scheduler(self, requests, sampling).run()
        finally:
            self.policy.model.train(training)

    def _fused_projections(self) -> AbstractContextManager[None]:
        """On a CPU; on CUDA they come with compiled layers (compiled_decode.py)."""
        if self.policy.device.type != "cpu":
            return nullcontext()
        if self.fused is None or not self.fused.is_valid:
            self.fused = FusedProjections(decoder_layers(self.policy.model) or [])
        return self.fused.in_use()

    def cache_for(self, like: Prefill, answers: int, slot_length: int) -> SlotKVCache:
        """The KV cache to use: the present one if it is large enough, else as memory allows."""
        wanted = min(answers, self.max_batch)
        slot_length += MULTI_STEP  # several steps may run past an answer's end
        cache = self.kv_cache
        if cache is None or cache.slots < wanted or cache.slot_length < slot_length:
            self.kv_cache = cache = None  # free it before its successor is allocated
            if self.graphs is not None:
                self.graphs.reset()
            free = int(CACHE_SHARE * free_bytes(self.policy.device))
            affordable = free // bytes_per_slot(like, slot_length)
            cache = SlotKVCache(like, max(1, min(wanted, affordable)), slot_length)
            self.kv_cache = cache
        return cache


class _Scheduler:
    """One call of `generate`: the queue, the running answers, and what is finished."""

    def __init__(
        self, engine: NativeEngine, requests: Sequence[Request], sampling: Sampling
    ) -> None:
        self.engine, self.policy = engine, engine.policy
        self.requests, self.sampling = requests, sampling
        self.device = self.policy.device
        self.queue = deque(range(len(requests)))
        self.prefilled: deque[PrefilledPrompt] = deque()
        self.done: dict[tuple[int, int], Completion] = {}
        self.total = sum(len(request.keys) for request in requests)
        longest = max((len(request.prompt_tokens) for request in requests), default=0)
        self.max_length = longest + sampling.max_tokens
        stops = StopStrings(sampling.stop, self.policy.tokenizer)
        self.batch = RunningBatch(sampling.max_tokens, MULTI_STEP, self.policy.eos_ids, stops)
        self.cache: SlotKVCache | None = None
        self.batch_changed = True
        """Whether other answers are in the slots than at the last replay of graphs."""

    def run(self) -> list[tuple[Completion, ...]]:
        while len(self.done) < self.total:
            self._admit()
            if self.batch.size:
                self._decode()
        return [
            tuple(self.done[n, i] for i in range(len(request.keys)))
            for n, request in enumerate(self.requests)
        ]

    def _admit(self) -> None:
        """Fill free slots: answers to prefilled prompts first, then the next prompts."""
        while True:
            free = (self.cache.slots if self.cache else 1) - self.batch.size
            if free <= 0 or not (self.prefilled or self.queue):
                return
            if not self.prefilled:
                self._prefill(free if self.cache else None)
                continue
            admitted: list[tuple[PrefilledPrompt, int]] = []
            while self.prefilled and len(admitted) < free:
                prompt = self.prefilled[0]
                admitted.append((prompt, prompt.waiting.popleft()))
                if not prompt.waiting:
                    self.prefilled.popleft()
            self._start(admitted)

    def _prefill(self, free: int | None) -> None:
        """Prefill the next prompts, as many as free slots and PREFILL_TOKENS allow."""
        chosen: list[int] = []
        answers = tokens = 0
        while self.queue and (free is None or answers < free):
            size = len(self.requests[self.queue[0]].prompt_tokens)
            if chosen and tokens + size > PREFILL_TOKENS:
                break
            chosen.append(self.queue.popleft())
            answers += len(self.requests[chosen[-1]].keys)
            tokens += size
        prompts = [self.requests[n].prompt_tokens for n in chosen]
        seqlens = [len(prompt) for prompt in prompts]
        prefill = Prefill(seqlens, self.device)
        packed = torch.tensor([[t for prompt in prompts for t in prompt]], device=self.device)
        positions = torch.cat([torch.arange(seqlen) for seqlen in seqlens])[None].to(self.device)
        with use_attention(self.policy.model, prefill):
            hidden = self.policy.body(input_ids=packed, position_ids=positions)
        last = torch.tensor(prefill.cu_seqlens[1:], device=self.device) - 1
        logits = self.policy.head(hidden[0, last])
        if self.cache is None:
            self.cache = self.engine.cache_for(prefill, self.total, self.max_length)
            self.batch.allocate(self.cache.slots)
        for index, n in enumerate(chosen):
            waiting = deque(range(len(self.requests[n].keys)))
            if waiting:
                self.prefilled.append(PrefilledPrompt(n, prefill, index, logits[index], waiting))

    def _start(self, admitted: Sequence[tuple[PrefilledPrompt, int]]) -> None:
        """Put answers into slots, with their prompts' KV; sample their first tokens."""
        assert self.cache is not None
        first = self.batch.size
        for prompt, answer in admitted:
            request = self.requests[prompt.request]
            self.batch.add(prompt.request, answer, len(request.prompt_tokens), request.keys[answer])
        for prefill in {id(prompt.prefill): prompt.prefill for prompt, _ in admitted}.values():
            prompt_of_slot = {
                first + n: prompt.index
                for n, (prompt, _) in enumerate(admitted)
                if prompt.prefill is prefill
            }
            self.cache.admit(prefill, prompt_of_slot)
        self.batch_changed = True
        logits = torch.stack([prompt.logits_V for prompt, _ in admitted])
        self._append(*self._sample(logits, first), first)

    def _decode(self) -> None:
        """The next token, or the next few, of every running answer."""
        if self.engine.graphs is not None and self.sampling.repetition_penalty == 1:
            self._append(*self._replay_graphs())
            return
        assert self.cache is not None
        last_tokens = torch.from_numpy(self.batch.last_tokens).to(self.device)
        kv_lens = torch.from_numpy(self.batch.kv_lens).to(self.device)
        self.cache.begin_step(kv_lens, int(self.batch.kv_lens.max()) + 1)
        model, compiled = self.policy.model, self.engine.compiled
        with use_attention(model, self.cache), compiled_layers(model, compiled):
            hidden = self.policy.body(input_ids=last_tokens[:, None], position_ids=kv_lens[:, None])
        self._append(*self._sample(self.policy.head(hidden[:, -1]), 0))

    def _replay_graphs(self) -> tuple[Tensor, Tensor]:
        """Up to MULTI_STEP tokens of every running answer."""
        assert self.engine.graphs is not None and self.cache is not None
        batch, changed = self.batch, self.batch_changed
        shortest = int(batch.output_lens[: batch.size].min())
        steps = min(MULTI_STEP, self.sampling.max_tokens - shortest)
        self.batch_changed = False
        return self.engine.graphs.run(self.cache, batch, changed, self.sampling, steps)

    def _sample(self, logits_nV: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """One token for each answer from slot `first` on."""
        batch = self.batch
        keys = key_tensor(batch.keys[first : batch.size].tolist(), self.device)
        positions = torch.from_numpy(batch.output_lens[first : batch.size]).to(self.device)
        sample = sample_tokens if self.engine.graphs is None else self.engine.graphs.sample
        seen = self._seen_tokens(first)
        tokens, logprobs = sample(logits_nV, keys, positions, self.sampling, seen)
        return tokens[:, None], logprobs[:, None]

    def _seen_tokens(self, first: int) -> Tensor:
        """Prompt and answer so far, rows padded with their own first token; or nothing."""
        batch = self.batch
        if self.sampling.repetition_penalty == 1:
            return torch.zeros(batch.size - first, 0, dtype=torch.long, device=self.device)
        rows = [
            [*self.requests[batch.owners[slot][0]].prompt_tokens, *batch.tokens_of(slot)]
            for slot in range(first, batch.size)
        ]
        width = max(len(row) for row in rows)
        padded = [row + row[:1] * (width - len(row)) for row in rows]
        return torch.tensor(padded, device=self.device)

    def _append(self, tokens_nK: Tensor, logprobs_nK: Tensor, first: int = 0) -> None:
        """Append new tokens to the answers from slot `first` on, and take finished answers out.

        The last running answers move into the slots that become free.
        """
        batch = self.batch
        ended = batch.append(np.asarray(tokens_nK.cpu()), np.asarray(logprobs_nK.cpu()), first)
        if not ended:
            return
        for slot, reason in ended.items():
            tokens, logprobs = tuple(batch.tokens_of(slot)), tuple(batch.logprobs_of(slot))
            done = Completion(tokens, logprobs, reason, "", self.engine.version)
            self.done[batch.owners[slot]] = done
        sources, targets = batch.remove(ended)
        if sources:
            assert self.cache is not None
            self.cache.move(sources, targets, int(batch.kv_lens[targets].max()) + 1)
        self.batch_changed = True
