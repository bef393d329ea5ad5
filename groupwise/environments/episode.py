"""An episode: the model and an environment in turn, as one coroutine over an engine.

    turn 1, reply, turn 2, reply, ..., score

Nothing waits for it and it waits for nobody: while an environment takes its time, other episodes
are sampled. Whatever an environment does ends its own episode at worst.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from groupwise.environments.base import (
    ChatMessage,
    Environment,
    EnvironmentFailed,
    Reply,
    Thread,
    ToolSpec,
    Turn,
    checked_reply,
    checked_scores,
)
from groupwise.environments.calls import ParseTurn, as_message, parse_hermes
from groupwise.environments.chat import Chat
from groupwise.environments.threads import EpisodeThread, SamplingThread, SharedThread
from groupwise.errors import GroupwiseError
from groupwise.policy.prompts import decode
from groupwise.policy.tokenizing import text_of, tokens_of
from groupwise.rollout.engine import Engine
from groupwise.rollout.noise import answer_key
from groupwise.secrets import masked
from groupwise.types import Completion, Episode, Problem, Request, Sampling, StopReason

Checked = TypeVar("Checked")

LONGEST_TOKEN = 256
"""Characters: tokenizers have none longer, but for rows of spaces."""


@dataclass(frozen=True)
class EpisodeLimits:
    """What an episode may take. The tokens of replies do not count against `max_tokens`."""

    max_tokens: int
    """Tokens that the model may write in all its turns together."""
    max_turns: int = 8
    max_reply_tokens: int = 1024
    """Tokens of one message of a reply; the rest of a longer one is left out."""
    max_prompt_tokens: int | None = None
    """Tokens of the prompt that an agent begins with; the task's own were measured before."""
    step_seconds: float = 60.0
    """Seconds that the environment may take for one reply."""
    episode_seconds: float = 600.0
    """Seconds that it may take in all."""


@dataclass(frozen=True)
class Segment:
    """Tokens that only grew, and the prompt that they grew from."""

    prompt: tuple[int, ...]
    completion: Completion


@dataclass
class Trace:
    """The tokens held, and which of them the model wrote, from `prompt` on."""

    prompt: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    version: int | None = None
    versions: list[tuple[int, int]] = field(default_factory=list)
    closed: list[Segment] = field(default_factory=list)

    @property
    def held(self) -> tuple[int, ...]:
        return (*self.prompt, *self.tokens)

    def add(self, answer: Completion) -> None:
        for first, version in answer.versions or ((0, answer.version),):
            if first < len(answer.tokens):
                self.versions.append((len(self.tokens) + first, version))
        self.tokens += answer.tokens
        self.logprobs += answer.logprobs
        self.sampled += [True] * len(answer.tokens)
        # The oldest weights behind an episode decide how stale it is.
        self.version = min(answer.version, answer.version if self.version is None else self.version)

    def append(self, tokens: tuple[int, ...]) -> None:
        self.tokens += tokens
        self.logprobs += [0.0] * len(tokens)
        self.sampled += [False] * len(tokens)

    def restart(self, prompt: tuple[int, ...]) -> None:
        """A new segment: what was sampled so far is learned from as it was sampled."""
        self.closed.append(self.segment("eos"))
        self.prompt, self.tokens, self.logprobs, self.sampled = prompt, [], [], []
        self.versions = []

    def segment(self, stop: StopReason) -> Segment:
        drawn_by = {version for _, version in self.versions}
        written = Completion(
            tuple(self.tokens),
            tuple(self.logprobs),
            stop,
            version=self.version or 0,
            sampled=None if all(self.sampled) else tuple(self.sampled),
            segment=len(self.closed),
            versions=tuple(self.versions) if drawn_by != {self.version} else (),
        )
        return Segment(self.prompt, written)


@dataclass(frozen=True)
class EpisodeInputs:
    """What an episode is played with, by an EpisodeRun or by an agent.AgentRun."""

    engine: Engine
    make: Callable[[Problem], Any]
    problem: Problem
    chat: Chat
    tokenizer: Any
    eos_ids: tuple[int, ...]
    sampling: Sampling
    limits: EpisodeLimits
    key: int
    seed: int
    parse: ParseTurn = parse_hermes
    thread: Thread = "own"


class EpisodeRun:
    """One episode. `await EpisodeRun(inputs).run()` gives its segments, as a rule one."""

    def __init__(self, inputs: EpisodeInputs) -> None:
        self.inputs = inputs
        self.environment: Environment | None = None
        self.tools: tuple[ToolSpec, ...] = ()
        self.trace = Trace()
        self.messages = as_messages(inputs.problem)
        self.asked = len(self.messages)
        self.turns: list[int] = []
        self.rewards: list[float | None] = []
        self.calls = self.malformed = 0
        self.waited = 0.0
        self.text = ""

    async def run(self) -> tuple[Segment, ...]:
        began, error, scores = time.monotonic(), "", {}
        stop: StopReason = "environment"
        self.thread = thread_of(self.inputs)
        try:
            await self._begin()
            stop = await self._converse()
            assert self.environment is not None
            scores = await self._wait("score()", self.environment.score, checked_scores)
        except EnvironmentFailed as failure:
            stop, error = "environment", masked(str(failure))
            if not self.trace.prompt:  # it did not begin: the bare prompt is all there is
                self.trace.prompt = self.inputs.chat.opening(self.messages, ())
        finally:
            await self._close()
        episode = Episode(
            messages=tuple(self.messages[self.asked :]),
            turns=tuple(self.turns),
            rewards=tuple(self.rewards),
            scores=scores,
            tools=len(self.tools),
            calls=self.calls,
            malformed=self.malformed,
            segments=len(self.trace.closed) + 1,
            error=error,
            seconds=time.monotonic() - began,
            waited=self.waited,
        )
        segments = [*self.trace.closed, self.trace.segment(stop)]
        return whole_episode(segments, stop, episode, self.text)

    async def _begin(self) -> None:
        async def made_and_reset() -> Reply:
            made: Environment = self.inputs.make(self.inputs.problem)
            self.environment = made
            return await made.reset(self.inputs.problem, self.inputs.seed)

        reply = await self._wait("reset()", made_and_reset, checked_reply)
        assert self.environment is not None
        self.tools = tuple(self.environment.tools)
        whole = list(reply.messages) if reply.replaces else None
        self.messages = whole or opened(self.messages, self._cut(reply))
        self.asked = len(self.messages)
        tokenizer, problem = self.inputs.tokenizer, self.inputs.problem
        prefill = tokens_of(tokenizer, problem.prefill)
        self.trace.prompt = (*self.inputs.chat.opening(self.messages, self.tools), *prefill)

    async def _converse(self) -> StopReason:
        while True:
            assert self.environment is not None
            turn, step = await self._turn(), self.environment.step
            self.messages.append(as_message(turn))
            left = self.inputs.limits.max_tokens - sum(self.turns)
            cut = turn.stop == "length"
            if cut and not getattr(self.environment, "takes_cut_turns", False):
                self.rewards.append(None)
                return "length"
            reply = await self._wait("step()", partial(step, turn), checked_reply)
            self.rewards.append(reply.reward)
            if cut:
                return "length"
            if reply.done:
                self.messages += self._cut(reply)
                return turn.stop
            if len(self.turns) >= self.inputs.limits.max_turns:
                return "turns"
            if left <= 0:
                return "length"
            replies = self._cut(reply)
            following = self.inputs.chat.extend(self.trace.held, self.messages, replies, self.tools)
            self.messages += replies
            if following.broken is None:
                self.trace.append(following.tokens[len(self.trace.held) :])
            else:
                self.trace.restart(following.tokens)

    async def _turn(self) -> Turn:
        inputs, number = self.inputs, len(self.turns)
        left = inputs.limits.max_tokens - sum(self.turns)
        key = answer_key(inputs.key, "turn", number) if number else inputs.key
        # Few different limits: engines take requests with equal settings together.
        allowed = min(inputs.sampling.max_tokens, power_of_two(left))
        request = Request(self.trace.held, (key,))
        sampling = replace(inputs.sampling, max_tokens=allowed)
        (answer,) = await inputs.engine.sample(request, sampling)
        answer = cut_answer(answer, left)
        self.trace.add(answer)
        self.turns.append(len(answer.tokens))
        opening = "" if number else inputs.problem.prefill
        self.text = opening + decode(answer.tokens, inputs.tokenizer, inputs.eos_ids)
        written = with_special_tokens(answer.tokens, inputs.tokenizer, inputs.eos_ids)
        turn = inputs.parse(opening + written, answer.stop)
        self.calls += len(turn.calls)
        self.malformed += sum(bool(call.error) for call in turn.calls)
        return turn

    async def _wait(
        self, what: str, work: Callable[[], Awaitable[Any]], check: Callable[[Any], Checked]
    ) -> Checked:
        """A call of the environment, in its thread, within what is left of its time."""

        async def checked() -> Checked:
            return check(await work())

        limits = self.inputs.limits
        left = limits.episode_seconds - self.waited
        if left <= 0:
            most = limits.episode_seconds
            raise EnvironmentFailed(f"{what} was not asked: the {most:g} s of the episode are over")
        began = time.monotonic()
        try:
            return await self.thread.call(what, checked, min(limits.step_seconds, left))
        finally:
            self.waited += time.monotonic() - began

    async def _close(self) -> None:
        seconds = min(self.inputs.limits.step_seconds, 1.0 if self.thread.hangs else 60.0)
        # The episode is over: nothing depends on how closing goes.
        with contextlib.suppress(EnvironmentFailed, GroupwiseError):
            if self.environment is not None:
                await self.thread.call("close()", self.environment.close, seconds)
        self.thread.close()

    def _cut(self, reply: Reply) -> list[ChatMessage]:
        """The reply's messages, none longer than may be: a long one must not fill the context."""
        most = self.inputs.limits.max_reply_tokens
        return [cut_message(message, self.inputs.tokenizer, most) for message in reply.messages]


def thread_of(inputs: EpisodeInputs) -> EpisodeThread | SamplingThread:
    kinds = {"own": EpisodeThread, "shared": SharedThread, "sampling": SamplingThread}
    return kinds[inputs.thread](f"environment of {inputs.problem.id}"[:60])


def whole_episode(
    segments: Sequence[Segment], stop: StopReason, episode: Episode, text: str
) -> tuple[Segment, ...]:
    """All its segments ended as it did; the first says what happened in it."""
    whole = [replace(s, completion=replace(s.completion, stop=stop)) for s in segments]
    first = replace(whole[0].completion, episode=episode, text=text)
    return (replace(whole[0], completion=first), *whole[1:])


def cut_message(message: ChatMessage, tokenizer: Any, max_tokens: int) -> ChatMessage:
    """Of a flood only the beginning is tokenized: the rest would be left out anyway."""
    content = message["content"]
    beginning = content[: LONGEST_TOKEN * (max_tokens + 1)]
    tokens = tokens_of(tokenizer, beginning)
    over, rest = len(tokens) - max_tokens, len(content) - len(beginning)
    if over <= 0 and not rest:
        return message
    kept = text_of(tokenizer, tokens[:max_tokens])
    more = f"{max(over, 0)} more tokens" + f" and {rest} characters behind them" * bool(rest)
    return {**message, "content": f"{kept}\n[{more} were left out]"}


def opened(prompt: list[ChatMessage], first: list[ChatMessage]) -> list[ChatMessage]:
    """The conversation that an episode begins with: a user's text joins the question before it."""
    messages = list(prompt)
    for message in first:
        if messages and message["role"] == messages[-1]["role"] == "user":
            last: Mapping[str, Any] = messages[-1]
            messages[-1] = {**last, "content": f"{last['content']}{message['content']}"}
        else:
            messages.append(message)
    return messages


def as_messages(problem: Problem) -> list[ChatMessage]:
    if isinstance(problem.prompt, str):
        return [{"role": "user", "content": problem.prompt}]
    return [dict(message) for message in problem.prompt]


def with_special_tokens(tokens: tuple[int, ...], tokenizer: Any, eos_ids: tuple[int, ...]) -> str:
    """Some families mark calls with special tokens, which `decode` leaves out."""
    if tokens and tokens[-1] in eos_ids:
        tokens = tokens[:-1]
    return text_of(tokenizer, tokens, skip_special_tokens=False)


def cut_answer(answer: Completion, left: int) -> Completion:
    """As much of it as its episode may still have."""
    if len(answer.tokens) <= left:
        return answer
    kept = answer.tokens[:left], answer.logprobs[:left]
    return replace(answer, tokens=kept[0], logprobs=kept[1], stop="length")


def power_of_two(number: int) -> int:
    """The smallest that is not less."""
    return 1 << max(number - 1, 0).bit_length()
