"""Continuous batching over KV pages: which answers run and which wait.

Answers wait in a queue. While rows and pages are free, the next contexts (prompts) are prefilled,
each once for all answers that continue it, and their answers start. These share the context's full
pages, and each has a copy of the last, partly filled one. When pages run out, the answer that was
admitted last is preempted: it gives up its pages and waits with the tokens that it has, which are
prefilled again later. So memory decides how many answers run at once, and never whether they can be
sampled.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from groupwise.errors import ModelError
from groupwise.policy.policy import Policy
from groupwise.rollout.engine import OnTokens
from groupwise.rollout.native.decode import Decoder, Drawn
from groupwise.rollout.native.kv_cache import PagedKVCache
from groupwise.rollout.native.limits import ADMIT_SHARE, PREFILL_TOKENS
from groupwise.rollout.native.prefill import Context, prefill
from groupwise.rollout.native.running_batch import RunningAnswer, RunningBatch
from groupwise.rollout.stopping import StopStrings
from groupwise.types import Completion, Request, Sampling, StopReason


@dataclass(eq=False)
class SampleCall:
    """One call of `sample`: the future of its caller, and the answers that are done."""

    future: asyncio.Future[tuple[Completion, ...]]
    wanted: int
    on_tokens: OnTokens | None = None
    done: dict[int, Completion] = field(default_factory=dict)


@dataclass(eq=False)
class Prefilled:
    """A context in its pages, the logits of its next token, and answers that can start."""

    context: Context
    logits_V: Tensor
    answers: deque[RunningAnswer]


class Scheduler:
    def __init__(
        self, policy: Policy, cache: PagedKVCache, decoder: Decoder, max_batch: int
    ) -> None:
        self.policy, self.cache, self.decoder, self.max_batch = policy, cache, decoder, max_batch
        self.pool = cache.pool
        self.batch = RunningBatch(max_batch, decoder.most_steps, policy.eos_ids)
        self.calls: set[SampleCall] = set()
        self.waiting: deque[RunningAnswer] = deque()
        self.prefilled: deque[Prefilled] = deque()
        self.version = self.loads = 0
        """The weights' version, and how often weights were loaded."""
        self.steps_since_admission = 0
        """Decode steps since answers that wait were last admitted."""

    @property
    def busy(self) -> bool:
        return bool(self.calls)

    def submit(
        self,
        request: Request,
        sampling: Sampling,
        future: asyncio.Future[tuple[Completion, ...]],
        on_tokens: OnTokens | None = None,
    ) -> None:
        call = SampleCall(future, len(request.keys), on_tokens)
        self.calls.add(call)
        prompt = np.array(request.prompt_tokens, dtype=np.int64)
        stops = StopStrings(sampling.stop, self.policy.tokenizer)
        drawn_by = replace(sampling, max_tokens=0, stop=())
        self.waiting.extend(
            RunningAnswer(call, n, prompt, key, drawn_by, sampling.max_tokens, stops)
            for n, key in enumerate(request.keys)
        )

    def weights_changed(self, version: int) -> None:
        """Running answers keep their pages; nothing else that older weights computed is used."""
        self.version = version
        self.loads += 1
        self.pool.clear_prefix_cache()
        while self.prefilled:
            self._requeue(self.prefilled.pop())

    def step(self) -> None:
        self._drop_finished_calls()
        if (self.waiting or self.prefilled) and self._may_admit():
            self._append(self.decoder.read(self.batch))
            self._admit()
        ahead = self._allocate_pages()
        if self.batch.size:
            self._append(self.decoder.decode(self.batch, self.version, ahead=ahead))

    def _drop_finished_calls(self) -> None:
        """Forget calls that were cancelled or have failed, and free what they held."""
        gone = {call for call in self.calls if call.future.done()}
        if not gone:
            return
        self.calls -= gone
        self._remove_rows([n for n, answer in enumerate(self.batch.answers) if answer.call in gone])
        self.waiting = deque(answer for answer in self.waiting if answer.call not in gone)
        for record in list(self.prefilled):
            record.answers = deque(a for a in record.answers if a.call not in gone)
            if not record.answers:
                self.pool.release(record.context.pages)
                self.prefilled.remove(record)

    def _may_admit(self) -> bool:
        """Waiting answers are prefilled together, not a few at a time: every prefill delays all
        running answers."""
        self.steps_since_admission += self.decoder.most_steps
        wanted = len(self.waiting) + sum(len(record.answers) for record in self.prefilled)
        many = min(wanted, self.max_batch - self.batch.size) >= ADMIT_SHARE * self.batch.size
        if many or self.steps_since_admission > self.decoder.admit_every:
            self.steps_since_admission = 0
            return True
        return False

    def _admit(self) -> None:
        while self.batch.size < self.max_batch and (self.prefilled or self._prefill()):
            if not self._start():
                return

    def _prefill(self) -> bool:
        """Prefill the next contexts, as many as free rows, pages and PREFILL_TOKENS allow."""
        pool, free = self.pool, self.max_batch - self.batch.size
        chosen: list[tuple[Context, deque[RunningAnswer]]] = []
        tokens = answers = 0
        while self.waiting and answers < free:
            context = self.waiting[0].context
            held = pool.match_prefix(context)
            size = len(context) - len(held) * self.cache.page
            new = self.cache.pages_for(len(context)) - len(held)
            # Beside its own, one more page for each answer: the next step of all must have room.
            room = new + self.batch.size + len(chosen) + 1
            if (chosen and tokens + size > PREFILL_TOKENS) or not pool.reserve(room):
                pool.release(held)
                break
            same = self._take_waiting(context)
            chosen.append((Context(context, held + pool.alloc(new), len(held)), same))
            tokens, answers = tokens + size, answers + len(same)
        if chosen:
            contexts = [context for context, _ in chosen]
            logits = prefill(self.policy, self.cache, contexts, self.decoder.prefill_layers)
            for (context, same), logits_V in zip(chosen, logits, strict=True):
                pool.add_prefix(context.tokens, context.pages)
                self.prefilled.append(Prefilled(context, logits_V, same))
        elif self.waiting and not self.batch.size:
            self._fail(self.waiting[0])
        return bool(chosen)

    def _take_waiting(self, context: np.ndarray) -> deque[RunningAnswer]:
        """The next answers in the queue, as long as they continue this context."""
        same: deque[RunningAnswer] = deque()
        while self.waiting and np.array_equal(self.waiting[0].context, context):
            same.append(self.waiting.popleft())
        return same

    def _start(self) -> bool:
        """Give rows to answers whose contexts are prefilled, and draw their next tokens."""
        first, logits, copies, filled = self.batch.size, [], [], 0
        while self.prefilled and self.batch.size < self.max_batch:
            record = self.prefilled[0]
            length = len(record.context.tokens)
            if not self.pool.reserve(self.batch.size + 2):
                if self.batch.size:
                    break
                rest = deque(list(record.answers)[1:])
                self.waiting.extendleft(reversed(rest))
                record.answers = deque([record.answers[0]])
            answer, pages = record.answers.popleft(), record.context.pages
            if record.answers:
                full = length // self.cache.page
                shared, partly_filled = pages[:full], pages[full:]
                self.pool.share(shared)
                pages = shared + self.pool.alloc(len(partly_filled))
                copies += zip(partly_filled, pages[full:], strict=True)
                filled = max(filled, length % self.cache.page)
            else:
                self.prefilled.popleft()
            answer.prefilled_by = self.loads
            self.batch.add(answer, pages)
            logits.append(record.logits_V)
        if copies:
            sources, targets = zip(*copies, strict=True)
            self.cache.copy(sources, targets, filled)
        if logits:
            rows = np.arange(first, self.batch.size)
            self._append(self.decoder.draw(self.batch, rows, torch.stack(logits)))
        return bool(logits)

    def _allocate_pages(self) -> bool:
        """Allocate the pages that every row needs for its next steps. True where there are enough
        for the steps after those as well."""
        batch, page, decoder = self.batch, self.cache.page, self.decoder
        # A row that becomes free is wanted soon: before answers start, nothing is launched ahead.
        soon = self.steps_since_admission + decoder.most_steps > decoder.admit_every
        ahead = decoder.most_steps > 1 and not ((self.waiting or self.prefilled) and soon)
        while True:
            steps = 2 * decoder.most_steps if ahead else decoder.unread or decoder.most_steps
            wanted = np.minimum(batch.kv_lens + steps, batch.max_kv_lens)
            missing = -(-wanted // page) - batch.page_counts[: batch.size]
            if self.pool.reserve(int(missing.sum())):
                break
            if ahead:
                ahead = False
            elif self.prefilled:
                self._requeue(self.prefilled.pop())
            elif batch.size > 1:
                self._preempt(int(batch.age[: batch.size].argmax()))
            else:
                self._fail(batch.answers[0])
                self._remove_rows([0])
        for row in np.flatnonzero(missing).tolist():
            batch.add_pages(row, self.pool.alloc(int(missing[row])))
        return ahead

    def _preempt(self, row: int) -> None:
        answer = self.batch.answers[row]
        answer.tokens = self.batch.tokens_of(row).copy()
        answer.logprobs = self.batch.logprobs_of(row).copy()
        self.waiting.appendleft(answer)
        self._remove_rows([row])

    def _requeue(self, record: Prefilled) -> None:
        self.pool.release(record.context.pages)
        self.waiting.extendleft(reversed(record.answers))

    def _append(self, drawn: Iterable[Drawn]) -> None:
        """Append new tokens to their rows, and take finished answers out."""
        ended: dict[int, StopReason] = {}
        for rows, tokens, logprobs, version in drawn:
            before = self.batch.output_lens[rows]
            by = self.version if version is None else version
            ended |= self.batch.append(rows, tokens, logprobs, by)
            self._stream_tokens(rows.tolist(), before.tolist())
        for row, reason in ended.items():
            answer = self.batch.answers[row]
            versions = tuple(answer.versions)
            done = Completion(
                tuple(self.batch.tokens_of(row).tolist()),
                tuple(self.batch.logprobs_of(row).tolist()),
                reason,
                version=min(version for _, version in versions),
                versions=versions if len(versions) > 1 else (),
            )
            self._finish(answer, done)
        self._remove_rows(list(ended))

    def _stream_tokens(self, rows: Sequence[int], before: Sequence[int]) -> None:
        """Pass new tokens on to the callers that asked for a stream."""
        for row, first in zip(rows, before, strict=True):
            answer = self.batch.answers[row]
            if answer.call.on_tokens is not None:
                tokens = self.batch.tokens_of(row)[first:].tolist()
                logprobs = self.batch.logprobs_of(row)[first:].tolist()
                answer.call.on_tokens(answer.index, tokens, logprobs)

    def _finish(self, answer: RunningAnswer, completion: Completion) -> None:
        call: SampleCall = answer.call
        call.done[answer.index] = completion
        if len(call.done) == call.wanted and not call.future.done():
            call.future.set_result(tuple(call.done[n] for n in range(call.wanted)))
            self.calls.discard(call)

    def _fail(self, answer: RunningAnswer) -> None:
        """This answer does not fit into memory even alone. The rest of its call is dropped in the
        next step."""
        tokens = len(answer.prompt) + answer.max_tokens
        held = self.pool.capacity * self.cache.page
        error = ModelError(
            f"a prompt and an answer of up to {tokens} tokens do not fit into the KV cache, which "
            f"holds {held}. Lower rollout.max_completion_tokens or "
            "rollout.max_prompt_tokens, free memory on the device, or raise `ulimit -v`."
        )
        if not answer.call.future.done():
            answer.call.future.set_exception(error)

    def _remove_rows(self, rows: Sequence[int]) -> None:
        """Remove rows from the batch; their full pages go into the prefix cache."""
        for row in rows:
            pages = self.batch.pages[row]
            if self.batch.answers[row].prefilled_by == self.loads:
                self.pool.add_prefix(self.batch.context_of(row), pages)
            self.pool.release(pages)
        if rows:
            self.batch.remove(set(rows))
