"""Several vLLM servers as the engine of a run.

Weights are pushed before the next answers are asked for, to every server that has others; `sync`
only notes that they changed. Each answer says which version drew it, so one by other weights is
never learned from. A server that fails is left aside for a while and its work goes to the others;
when none is left the run ends with a message, and the same command goes on later.

In a run of several processes one of them pushes (`writer`), and the others wait until it has.
"""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from secrets import token_hex

import torch

from groupwise.config import EngineSettings
from groupwise.errors import EngineGoneError, ModelError
from groupwise.policy.load import Policy
from groupwise.rollout.stopping import StopStrings
from groupwise.rollout.vllm.server import START, State, VllmServer
from groupwise.rollout.vllm.waiting import Waiting
from groupwise.rollout.vllm.weights import Parcel, packed
from groupwise.rollout.vllm.wire import (
    BadAnswer,
    Drawn,
    completion,
    decode_answer,
    decode_probe,
    encode_probe,
    encode_question,
    longest_answer,
    sampling_params,
)
from groupwise.serve.client import Gone, token_in
from groupwise.serve.identity import ROUNDED, TOLERANCE, identify, probe_tokens
from groupwise.types import Completion, Request, Sampling

log = logging.getLogger("groupwise")

ASIDE_SECONDS = 30.0
"""How long a server that failed is left alone before it is tried again."""
MOST_FAILURES = 1
"""Of each server, in one call of `generate`: what fails everywhere ends the run."""
POLL_SECONDS = 0.2


@dataclass
class Link:
    """A server, and how it is. `state` is None until it has been reached, and while it is gone."""

    server: VllmServer
    number: int
    state: State | None = None
    try_at: float = 0.0
    reason: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


class VllmServers:
    """VllmServers(policy, settings, longest=1024) checks every server against the policy."""

    def __init__(self, policy: Policy, settings: EngineSettings, *, longest: int) -> None:
        self.policy, self.settings, self.longest = policy, settings, longest
        self.writer, self.run = True, token_hex(8)
        self.version = 0
        self.begun = False
        """Whether weights of this run have been pushed: those of an earlier one may be replaced."""
        token = token_in(settings.token_env, "engine.urls", "groupwise serve vllm")
        self.links = [
            Link(VllmServer(url.rstrip("/"), token, settings.token_env, settings.timeout), n)
            for n, url in enumerate(settings.urls)
        ]
        for link in self.links:
            try:
                self._reach(link)
            except Gone as error:
                self._put_aside(link, str(error))
        if all(link.state is None for link in self.links):
            raise self._nobody()

    @property
    def wanted(self) -> str:
        return f"{self.run}:{self.version}"

    def sync(self, version: int) -> None:
        """The next `generate` pushes the policy's weights to servers that have another version."""
        self.version = version

    def generate(
        self, requests: Sequence[Request], sampling: Sampling
    ) -> list[tuple[Completion, ...]]:
        self._check_lengths(requests, sampling)
        rows = [(n, request, key) for n, request in enumerate(requests) for key in request.keys]
        worn, eos = self.policy.adapter is not None, self.policy.eos_ids
        questions = [
            encode_question(r.prompt_tokens, sampling_params(key, sampling, eos), adapter=worn)
            for _, r, key in rows
        ]
        found: dict[int, Drawn] = {}
        failures = 0
        ready = self._ready()  # also where this rank has nothing to draw: others wait for weights
        while len(found) < len(rows):
            prompt_of = {i: n for i, (n, _, _) in enumerate(rows) if i not in found}
            lanes = min(self.settings.max_batch, len(prompt_of))
            waiting = Waiting(prompt_of)
            with ThreadPoolExecutor(len(ready) * lanes) as pool:
                work = [
                    pool.submit(self._work, link, questions, sampling.max_tokens, waiting, found)
                    for _ in range(lanes)
                    for link in ready
                ]
            failures += sum(task.result() for task in work)
            if len(found) < len(rows):
                if failures > MOST_FAILURES * len(self.links):
                    raise self._nobody()
                ready = self._ready()
        stops = StopStrings(sampling.stop, self.policy.tokenizer)
        answers = iter(
            completion(found[i], self.version, self.policy.eos_ids, stops) for i in range(len(rows))
        )
        return [tuple(next(answers) for _ in request.keys) for request in requests]

    def _work(
        self,
        link: Link,
        questions: Sequence[bytes],
        max_tokens: int,
        waiting: Waiting,
        found: dict[int, Drawn],
    ) -> int:
        """Draw what waits until nothing does, or until the server fails; whether it failed here."""
        most, vocab, wanted = longest_answer(max_tokens), self.policy.vocab, self.wanted
        while link.state is not None:
            index = waiting.take(link.number)
            if index is None:
                return 0
            try:
                drawn = decode_answer(link.server.ask(questions[index], most), vocab, max_tokens)
                if drawn.version != wanted:
                    raise Gone(other_weights(drawn.version, wanted))
                found[index] = drawn
            except (Gone, BadAnswer) as error:
                waiting.put_back(index)
                return int(self._put_aside(link, str(error)))
            except BaseException:
                waiting.clear()  # the run cannot go on: the others need not either
                raise
        return 0

    def _ready(self) -> list[Link]:
        """Servers with the present weights. Those left aside are tried when due, and at once if
        none is left."""
        now = time.monotonic()
        none_left = all(link.state is None for link in self.links)
        for link in self.links:
            if link.state is None and (none_left or now >= link.try_at):
                try:
                    self._reach(link)
                    log.info("vLLM server %s is back", link.server.url)
                except (Gone, ModelError) as error:
                    link.try_at, link.reason = time.monotonic() + ASIDE_SECONDS, str(error)
        behind = [link for link in self.links if link.state and link.state.version != self.wanted]
        if behind:
            self._update(behind)
        if not self.begun:
            self._probe([link for link in self.links if link.state is not None])
        ready = [link for link in self.links if link.state is not None]
        if not ready:
            raise self._nobody()
        self.begun = True
        return ready

    def _reach(self, link: Link) -> None:
        state = link.server.state()
        self._check_model(link.server.url, state)
        foreign = not state.version.startswith((f"{self.run}:", "default", "broken"))
        if foreign and self.begun:
            raise Gone("another run has put its weights there: each run needs servers of its own")
        link.state = state

    def _check_model(self, url: str, state: State) -> None:
        config = self.policy.model.config.get_text_config()
        ours = (self.policy.vocab, config.num_hidden_layers, config.hidden_size)
        theirs = (state.vocab, state.layers, state.width)
        problem = None
        if ours != theirs:
            problem = (
                "serves another model: vocabulary, layers and width are {}, {}, {}, the recipe's "
                "{}, {}, {}. Start it with the recipe's `model:`"
            ).format(*theirs, *ours)
        elif state.positions < self.longest:
            problem = (
                f"takes {state.positions} tokens, and the recipe's longest prompt with its answer "
                f"has {self.longest}: start it with --max-model-len {self.longest}, or lower "
                "rollout.max_prompt_tokens or max_completion_tokens"
            )
        elif state.logprobs != "processed_logprobs":
            problem = (
                f"gives {state.logprobs}, which are not those of what it draws from: start it with "
                "--logprobs-mode processed_logprobs"
            )
        elif self.policy.adapter is not None:
            rank = self.policy.adapter.peft.peft_config["default"].r
            if state.lora_rank < rank:
                problem = (
                    f"takes no adapter of rank {rank}: start it with --enable-lora "
                    f"--max-lora-rank {rank} (`groupwise serve vllm MODEL --lora-rank {rank}`)"
                )
        if problem is not None:
            raise ModelError(f"the vLLM server {url} {problem}")

    def _update(self, behind: Sequence[Link]) -> None:
        """Give the present weights to servers that have others, to all of them at once."""
        if not self.writer:
            for link in behind:
                self._await_writer(link)
            return
        dtypes = {link.state.dtype for link in behind if link.state}
        for dtype in sorted(dtypes):
            chosen = [link for link in behind if link.state and link.state.dtype == dtype]
            with (
                packed(self.policy, getattr(torch, dtype)) as parcel,
                ThreadPoolExecutor(len(chosen)) as pool,
            ):
                for task in [pool.submit(self._push, link, parcel) for link in chosen]:
                    task.result()

    def _push(self, link: Link, parcel: Parcel) -> None:
        try:
            link.server.push(parcel, self.wanted)
        except Gone as error:
            self._put_aside(link, f"pushing weights: {error}")
            return
        assert link.state is not None
        link.state = replace(link.state, version=self.wanted)

    def _await_writer(self, link: Link) -> None:
        deadline = time.monotonic() + self.settings.timeout
        try:
            while (state := link.server.state()).version != self.wanted:
                if time.monotonic() > deadline:
                    raise Gone(other_weights(state.version, self.wanted))
                time.sleep(POLL_SECONDS)
            link.state = state
        except Gone as error:
            self._put_aside(link, str(error))

    def _probe(self, ready: Sequence[Link]) -> None:
        """Whether a server finds the same tokens as likely as the policy does. Below an adapter
        the weights are its own, and a wrong RoPE or precision shows here and nowhere else."""
        tokens, ours = probe_tokens(self.policy.vocab), identify(self.policy).probe
        question = encode_probe(tokens, adapter=self.policy.adapter is not None)
        for link in ready:
            assert link.state is not None
            try:
                theirs = decode_probe(
                    link.server.ask(question, longest_answer(len(tokens))), tokens
                )
            except (Gone, BadAnswer) as error:
                self._put_aside(link, str(error))
                continue
            gap = sum(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / len(ours)
            exact = link.state.dtype == "float32" and not self.policy.rounds
            if not gap <= (TOLERANCE if exact else ROUNDED):
                raise ModelError(
                    f"the vLLM server {link.server.url} gives the same tokens other log-probs than "
                    f"the policy, by {gap:.2g} on average, with the same weights in it. Start it "
                    "with the recipe's `model:` and precision"
                )
            log.debug("%s: probe log-probs differ by %.2g on average", link.server.url, gap)

    def _check_lengths(self, requests: Sequence[Request], sampling: Sampling) -> None:
        longest = max((len(r.prompt_tokens) for r in requests), default=0) + sampling.max_tokens
        places = min((link.state.positions for link in self.links if link.state), default=longest)
        if longest > places:
            raise ModelError(
                f"a prompt with its answer has up to {longest} tokens, and a vLLM server takes "
                f"{places}: start it with --max-model-len {longest}"
            )

    def _put_aside(self, link: Link, reason: str) -> bool:
        """Whether it was still thought well: of many threads, one says it."""
        with link.lock:
            news = link.state is not None or not link.reason
            if news:
                link.state, link.reason = None, reason
                link.try_at = time.monotonic() + ASIDE_SECONDS
        if news:
            log.warning(
                "vLLM server %s is left aside (%s): its work goes to the others, and it is tried "
                "again every %g s",
                link.server.url,
                reason,
                ASIDE_SECONDS,
            )
        return news

    def _nobody(self) -> EngineGoneError:
        reasons = "; ".join(f"{link.server.url}: {link.reason}" for link in self.links)
        return EngineGoneError(
            f"no vLLM server is left ({reasons}). Start one with {START}, name it in engine.urls, "
            "and run the same command again"
        )


def other_weights(found: str, wanted: str) -> str:
    if found == "default":
        return "it was started again and has the weights that it was started with"
    if found.partition(":")[0] != wanted.partition(":")[0]:
        return "another run has put its weights there: each run needs servers of its own"
    return f"it has weights of version {found.partition(':')[2]}, not {wanted.partition(':')[2]}"
