"""The native engine: continuous batching over slots, in process, on the policy's own weights.

Answers wait in a queue. Whenever a slot is free the next answer is admitted; its prompt was
computed once for its whole group. Each step feeds one token per active answer through the model and
draws the next with that answer's key, so an answer does not depend on what else is in the batch.
On CUDA several steps run as one burst of graph replays; what is drawn past an end is dropped.
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
from groupwise.policy.load import Policy
from groupwise.rollout.native.cache import Prefill, SlotCache, slot_bytes
from groupwise.rollout.native.columns import by_columns
from groupwise.rollout.native.graphs import BURST, Graphs
from groupwise.rollout.native.joined import Joined
from groupwise.rollout.native.lines import Lines
from groupwise.rollout.native.memory import free_bytes
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import draw
from groupwise.rollout.stopping import StopStrings
from groupwise.types import Completion, Request, Sampling

PREFILL_TOKENS = 8192
"""Prompt tokens that go through the model at once."""


@dataclass
class Prompt:
    """A computed prompt whose answers are not all admitted yet."""

    request: int
    prefill: Prefill
    place: int
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
        self.cache: SlotCache | None = None
        self.joined: Joined | None = None
        self.graphs = None
        self.compiled = compile_layers and policy.device.type == "cpu"
        """Whether the layers that run without graphs are compiled."""
        if graphs and policy.device.type == "cuda":
            self.graphs = Graphs(policy, compile_layers)

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
            with self._joined(), by_columns(self.policy.model):
                return _Rollout(self, requests, sampling).run()
        finally:
            self.policy.model.train(training)

    def _joined(self) -> AbstractContextManager[None]:
        """On a CPU, layers that read the same input are one product; graphs see to it elsewhere."""
        if self.policy.device.type != "cpu":
            return nullcontext()
        if self.joined is None or not self.joined.holds:
            self.joined = Joined(decoder_layers(self.policy.model) or [])
        return self.joined.instead()

    def slots_for(self, like: Prefill, answers: int, length: int) -> SlotCache:
        """The cache to use: the one there is if it is large enough, else one as memory allows."""
        wanted = min(answers, self.max_batch)
        length += BURST  # a burst may run past an answer's end
        if self.cache is None or self.cache.slots < wanted or self.cache.length < length:
            self.cache = None
            if self.graphs is not None:
                self.graphs.forget()
            affordable = int(0.8 * free_bytes(self.policy.device)) // slot_bytes(like, length)
            self.cache = SlotCache(like, max(1, min(wanted, affordable)), length)
        return self.cache


class _Rollout:
    """One call of `generate`: the queue, the active answers, and what is finished."""

    def __init__(
        self, engine: NativeEngine, requests: Sequence[Request], sampling: Sampling
    ) -> None:
        self.engine, self.policy = engine, engine.policy
        self.requests, self.sampling = requests, sampling
        self.device = self.policy.device
        self.queue = deque(range(len(requests)))
        self.ready: deque[Prompt] = deque()
        self.done: dict[tuple[int, int], Completion] = {}
        self.total = sum(len(request.keys) for request in requests)
        longest = max((len(request.prompt_tokens) for request in requests), default=0)
        self.length = longest + sampling.max_tokens
        stops = StopStrings(sampling.stop, self.policy.tokenizer)
        self.lines = Lines(sampling.max_tokens, BURST, self.policy.eos_ids, stops)
        self.cache: SlotCache | None = None
        self.moved = True
        """Whether other answers are in the slots than at the last burst."""

    def run(self) -> list[tuple[Completion, ...]]:
        while len(self.done) < self.total:
            self._admit()
            if self.lines.active:
                self._step()
        return [
            tuple(self.done[n, i] for i in range(len(request.keys)))
            for n, request in enumerate(self.requests)
        ]

    def _admit(self) -> None:
        """Fill free slots: answers of computed prompts first, then the next prompts."""
        while True:
            free = (self.cache.slots if self.cache else 1) - self.lines.active
            if free <= 0 or not (self.ready or self.queue):
                return
            if not self.ready:
                self._prefill(free if self.cache else None)
                continue
            chosen: list[tuple[Prompt, int]] = []
            while self.ready and len(chosen) < free:
                prompt = self.ready[0]
                chosen.append((prompt, prompt.waiting.popleft()))
                if not prompt.waiting:
                    self.ready.popleft()
            self._start(chosen)

    def _prefill(self, free: int | None) -> None:
        """Compute the next prompts, as many as free slots and PREFILL_TOKENS allow."""
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
        lengths = [len(prompt) for prompt in prompts]
        attention = Prefill(lengths, self.device)
        packed = torch.tensor([[t for prompt in prompts for t in prompt]], device=self.device)
        places = torch.cat([torch.arange(length) for length in lengths])[None].to(self.device)
        with use_attention(self.policy.model, attention):
            hidden = self.policy.body(input_ids=packed, position_ids=places)
        ends = torch.tensor(attention.bounds[1:], device=self.device) - 1
        logits = self.policy.head(hidden[0, ends])
        if self.cache is None:
            self.cache = self.engine.slots_for(attention, self.total, self.length)
            self.lines.make(self.cache.slots)
        for place, n in enumerate(chosen):
            waiting = deque(range(len(self.requests[n].keys)))
            if waiting:
                self.ready.append(Prompt(n, attention, place, logits[place], waiting))

    def _start(self, chosen: Sequence[tuple[Prompt, int]]) -> None:
        """Put answers into slots, with their prompts' keys and values; draw their first tokens."""
        assert self.cache is not None
        first = self.lines.active
        for prompt, index in chosen:
            request = self.requests[prompt.request]
            self.lines.add(prompt.request, index, len(request.prompt_tokens), request.keys[index])
        for prefill in {id(prompt.prefill): prompt.prefill for prompt, _ in chosen}.values():
            slots = {
                first + n: prompt.place
                for n, (prompt, _) in enumerate(chosen)
                if prompt.prefill is prefill
            }
            self.cache.admit(prefill, slots)
        self.moved = True
        logits = torch.stack([prompt.logits_V for prompt, _ in chosen])
        self._take(*self._draw(logits, first), first)

    def _step(self) -> None:
        """The next token, or the next few, of every active answer."""
        if self.engine.graphs is not None and self.sampling.repetition_penalty == 1:
            self._take(*self._burst())
            return
        assert self.cache is not None
        newest = torch.from_numpy(self.lines.newest).to(self.device)
        fill = torch.from_numpy(self.lines.fill).to(self.device)
        self.cache.begin_step(fill, int(self.lines.fill.max()) + 1)
        model, compiled = self.policy.model, self.engine.compiled
        with use_attention(model, self.cache), compiled_layers(model, compiled):
            hidden = self.policy.body(input_ids=newest[:, None], position_ids=fill[:, None])
        self._take(*self._draw(self.policy.head(hidden[:, -1]), 0))

    def _burst(self) -> tuple[Tensor, Tensor]:
        """Up to BURST tokens of every active answer, drawn by replayed graphs."""
        assert self.engine.graphs is not None and self.cache is not None
        lines, moved = self.lines, self.moved
        steps = min(BURST, self.sampling.max_tokens - int(lines.count[: lines.active].min()))
        self.moved = False
        return self.engine.graphs.run(self.cache, lines, moved, self.sampling, steps)

    def _draw(self, logits_nV: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """One token for each answer from slot `first` on."""
        lines = self.lines
        keys = key_tensor(lines.keys[first : lines.active].tolist(), self.device)
        positions = torch.from_numpy(lines.count[first : lines.active]).to(self.device)
        sampler = draw if self.engine.graphs is None else self.engine.graphs.draw
        seen = self._seen(first)
        tokens, logprobs = sampler(logits_nV, keys, positions, self.sampling, seen)
        return tokens[:, None], logprobs[:, None]

    def _seen(self, first: int) -> Tensor:
        """Prompt and answer so far, rows filled up with their own first token; or nothing."""
        lines = self.lines
        if self.sampling.repetition_penalty == 1:
            return torch.zeros(lines.active - first, 0, dtype=torch.long, device=self.device)
        rows = [
            [*self.requests[lines.owner[slot][0]].prompt_tokens, *lines.tokens_of(slot)]
            for slot in range(first, lines.active)
        ]
        width = max(len(row) for row in rows)
        filled = [row + row[:1] * (width - len(row)) for row in rows]
        return torch.tensor(filled, device=self.device)

    def _take(self, tokens_nK: Tensor, logprobs_nK: Tensor, first: int = 0) -> None:
        """Give new tokens to the answers from slot `first` on, and take finished answers out.

        The last active answers move into the slots that become free.
        """
        lines = self.lines
        ends = lines.extend(np.asarray(tokens_nK.cpu()), np.asarray(logprobs_nK.cpu()), first)
        if not ends:
            return
        for slot, reason in ends.items():
            tokens, logprobs = tuple(lines.tokens_of(slot)), tuple(lines.logprobs_of(slot))
            done = Completion(tokens, logprobs, reason, "", self.engine.version)
            self.done[lines.owner[slot]] = done
        sources, targets = lines.remove(ends)
        if sources:
            assert self.cache is not None
            self.cache.move(sources, targets, int(lines.fill[targets].max()) + 1)
        self.moved = True
