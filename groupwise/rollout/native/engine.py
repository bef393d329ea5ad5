"""The native engine: continuous batching over slots, in process, on the policy's own weights.

Answers wait in a queue. Whenever a slot is free the next answer is admitted; its prompt was
computed once for its whole group. Each step feeds one token per active answer through the model and
draws the next with that answer's key, so an answer does not depend on what else is in the batch.
On CUDA several steps run as one burst of graph replays; what is drawn past an end is dropped.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from groupwise.policy.load import Policy
from groupwise.rollout.native.attention import attending
from groupwise.rollout.native.cache import Prefill, SlotCache, slot_bytes
from groupwise.rollout.native.graphs import BURST, Graphs
from groupwise.rollout.native.memory import free_bytes
from groupwise.rollout.native.weights import laid_out_for_decoding
from groupwise.rollout.noise import key_tensor
from groupwise.rollout.sampling import draw
from groupwise.rollout.stopping import StopStrings
from groupwise.types import Completion, Request, Sampling, StopReason

PREFILL_TOKENS = 8192
"""Prompt tokens that go through the model at once."""


@dataclass
class Answer:
    """An answer under way."""

    request: int
    index: int
    key: int
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)


@dataclass
class Prompt:
    """A computed prompt whose answers are not all admitted yet."""

    request: int
    tokens: tuple[int, ...]
    kept: dict[int, tuple[Tensor, Tensor]]
    logits_V: Tensor
    waiting: deque[Answer]


class NativeEngine:
    def __init__(
        self,
        policy: Policy,
        max_batch: int,
        compile_body: bool = False,
        graphs: bool = True,
    ) -> None:
        self.policy = policy
        self.max_batch = max_batch
        self.version = 0
        self.cache: SlotCache | None = None
        self.graphs = None
        if graphs and policy.device.type == "cuda":
            self.graphs = Graphs(policy, compile_body)

    def sync(self, version: int) -> None:
        self.version = version  # it samples from the policy itself: nothing to copy

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> list[tuple[Completion, ...]]:
        training = self.policy.model.training
        self.policy.model.eval()
        try:
            with laid_out_for_decoding(self.policy.model, sampling.max_tokens):
                return _Rollout(self, requests, sampling).run()
        finally:
            self.policy.model.train(training)

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
        self.stops = StopStrings(sampling.stop, self.policy.tokenizer)
        self.queue = deque(range(len(requests)))
        self.ready: deque[Prompt] = deque()
        self.active: list[Answer] = []
        self.fill: list[int] = []
        self.done: dict[tuple[int, int], Completion] = {}
        self.total = sum(len(request.keys) for request in requests)
        longest = max((len(request.prompt_tokens) for request in requests), default=0)
        self.length = longest + sampling.max_tokens
        self.cache: SlotCache | None = None

    def run(self) -> list[tuple[Completion, ...]]:
        while len(self.done) < self.total:
            self._admit()
            if self.active:
                self._step()
        return [
            tuple(self.done[n, i] for i in range(len(request.keys)))
            for n, request in enumerate(self.requests)
        ]

    def _admit(self) -> None:
        """Fill free slots: answers of computed prompts first, then the next prompts."""
        while True:
            free = (self.cache.slots if self.cache else 1) - len(self.active)
            if free <= 0 or not (self.ready or self.queue):
                return
            if not self.ready:
                self._prefill(self.cache.slots - len(self.active) if self.cache else None)
                continue
            prompt = self.ready[0]
            chosen = [prompt.waiting.popleft() for _ in range(min(free, len(prompt.waiting)))]
            if not prompt.waiting:
                self.ready.popleft()
            self._start(prompt, chosen)

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
        attention = Prefill(lengths)
        packed = torch.tensor([[t for prompt in prompts for t in prompt]], device=self.device)
        places = torch.cat([torch.arange(length) for length in lengths])[None].to(self.device)
        with attending(self.policy.model, attention):
            hidden = self.policy.body(input_ids=packed, position_ids=places)
        ends = torch.tensor(attention.bounds[1:], device=self.device) - 1
        logits = self.policy.head(hidden[0, ends])
        if self.cache is None:
            self.cache = self.engine.slots_for(attention, self.total, self.length)
        for place, n in enumerate(chosen):
            waiting = deque(Answer(n, i, key) for i, key in enumerate(self.requests[n].keys))
            if waiting:
                kept = attention.prompt(place)
                self.ready.append(Prompt(n, prompts[place], kept, logits[place], waiting))

    def _start(self, prompt: Prompt, answers: list[Answer]) -> None:
        """Put answers of one prompt into slots and draw their first tokens."""
        assert self.cache is not None
        first = len(self.active)
        self.cache.admit(prompt.kept, first, len(answers))
        self.active += answers
        self.fill += [len(prompt.tokens)] * len(answers)
        self._draw(prompt.logits_V.expand(len(answers), -1), first)
        self._harvest()

    def _step(self) -> None:
        """The next token, or the next few, of every active answer."""
        assert self.cache is not None
        newest = torch.tensor([a.tokens[-1] for a in self.active])
        fill = torch.tensor(self.fill)
        if self.engine.graphs is not None and self.sampling.repetition_penalty == 1:
            self._burst(newest, fill)
        else:
            fill = fill.to(self.device)
            self.cache.begin_step(fill, max(self.fill) + 1)
            with attending(self.policy.model, self.cache):
                hidden = self.policy.body(
                    input_ids=newest[:, None].to(self.device), position_ids=fill[:, None]
                )
            self.fill = [places + 1 for places in self.fill]
            self._draw(self.policy.head(hidden[:, -1]), 0)
        self._harvest()

    def _burst(self, newest: Tensor, fill: Tensor) -> None:
        """Up to BURST tokens of every active answer, drawn by replayed graphs."""
        assert self.engine.graphs is not None and self.cache is not None
        positions = torch.tensor([len(answer.tokens) for answer in self.active])
        steps = min(BURST, self.sampling.max_tokens - int(positions.min()))
        keys = key_tensor([answer.key for answer in self.active], "cpu")
        tokens, logps = self.engine.graphs.run(
            self.cache, newest, fill, positions, keys, self.sampling, steps
        )
        for slot, (answer, drawn, theirs) in enumerate(
            zip(self.active, tokens.tolist(), logps.tolist(), strict=True)
        ):
            for token, logp in zip(drawn, theirs, strict=True):
                answer.tokens.append(token)
                answer.logps.append(logp)
                self.fill[slot] += 1
                if self._ended(answer) is not None:
                    break

    def _draw(self, logits_nV: Tensor, first: int) -> None:
        answers = self.active[first:]
        keys = key_tensor([answer.key for answer in answers], self.device)
        positions = torch.tensor([len(answer.tokens) for answer in answers], device=self.device)
        tokens, logps = draw(logits_nV, keys, positions, self.sampling, self._seen(answers))
        drawn = zip(answers, tokens.tolist(), logps.tolist(), strict=True)
        for answer, token, logp in drawn:
            answer.tokens.append(token)
            answer.logps.append(logp)

    def _seen(self, answers: list[Answer]) -> Tensor:
        """Prompt and answer so far, rows filled up with their own first token; or nothing."""
        if self.sampling.repetition_penalty == 1:
            return torch.zeros(len(answers), 0, dtype=torch.long, device=self.device)
        rows = [[*self.requests[a.request].prompt_tokens, *a.tokens] for a in answers]
        width = max(len(row) for row in rows)
        filled = [row + row[:1] * (width - len(row)) for row in rows]
        return torch.tensor(filled, device=self.device)

    def _harvest(self) -> None:
        """Take finished answers out; the last active ones move into their slots."""
        reasons: list[StopReason | None] = [self._ended(answer) for answer in self.active]
        if not any(reasons):
            return
        for answer, reason in zip(self.active, reasons, strict=True):
            if reason is not None:
                self.done[answer.request, answer.index] = Completion(
                    tuple(answer.tokens), tuple(answer.logps), reason, "", self.engine.version
                )
        count = sum(reason is None for reason in reasons)
        holes = [slot for slot in range(count) if reasons[slot] is not None]
        movers = [slot for slot in range(count, len(reasons)) if reasons[slot] is None]
        if movers:
            assert self.cache is not None
            self.cache.move(movers, holes, max(self.fill[slot] for slot in movers))
        for mover, hole in zip(movers, holes, strict=True):
            self.active[hole], self.fill[hole] = self.active[mover], self.fill[mover]
        del self.active[count:], self.fill[count:]

    def _ended(self, answer: Answer) -> StopReason | None:
        if answer.tokens[-1] in self.policy.eos_ids:
            return "eos"
        if self.stops.strings and self.stops.just_ended(answer.tokens):
            return "stop"
        return "length" if len(answer.tokens) >= self.sampling.max_tokens else None
