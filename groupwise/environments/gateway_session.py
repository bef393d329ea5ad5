"""A session of the gateway: what an agent asks the model in one episode, token exact.

A request whose messages extend a conversation that the session holds, a reply of the model the last
of it, goes on from the very tokens that were sampled: the tokens held, and a suffix (chat.py).
Every other request (the agent rewrote the past, shows other tools, asks twice from the same point,
or begins a second conversation) begins a segment of its own. All segments are one episode.

The key of a reply is the episode's key and the number of its request. Requests are numbered as they
arrive, so a run repeats where an agent asks one thing at a time.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from groupwise.environments.base import ChatMessage, ToolSpec, Turn
from groupwise.environments.calls import ParseTurn, as_message, call_id, parse_hermes
from groupwise.environments.chat import Chat
from groupwise.environments.episode import (
    EpisodeLimits,
    Segment,
    Trace,
    cut_answer,
    cut_message,
    power_of_two,
    with_special_tokens,
)
from groupwise.environments.gateway_reply import ChatChoice, ChatReply, OnPart, Part
from groupwise.environments.gateway_request import (
    ChatRequest,
    RequestRefused,
    chat_messages,
    same_message,
)
from groupwise.policy.prompts import decode
from groupwise.rollout.engine import Engine, OnTokens, sample_stream
from groupwise.rollout.noise import answer_key
from groupwise.types import Completion, Request, Sampling, StopReason

MOST_AT_ONCE = 64
"""Requests of one session in progress."""

Messages = tuple[ChatMessage, ...]
Tools = tuple[ToolSpec, ...]


@dataclass
class _Branch:
    """A segment as it grows. `order` is the request that began it, and which of its choices."""

    order: tuple[int, int]
    trace: Trace
    turns: list[int] = field(default_factory=list)


@dataclass
class _Point:
    """Behind a reply, where a conversation can go on. `taken`: a request already does so."""

    messages: Messages
    tools: Tools
    branch: _Branch
    held: tuple[int, ...]
    taken: bool = False


@dataclass(frozen=True)
class _Asked:
    """A request with its number, its prompt, and the point that it goes on from, if any."""

    number: int
    messages: Messages
    new: Messages
    tools: Tools
    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    point: _Point | None


@dataclass(frozen=True)
class _RecordedReply:
    """The messages that were new in a request, with the first choice; and what that was."""

    messages: Messages
    text: str
    stop: StopReason


class Session:
    """Everything here happens in one event loop; `submit` may be called from any thread."""

    def __init__(
        self,
        engine: Engine,
        chat: Chat,
        tokenizer: Any,
        eos_ids: tuple[int, ...],
        sampling: Sampling,
        limits: EpisodeLimits,
        *,
        key: int,
        model: str = "groupwise",
        override_sampling: bool = False,
        positions: int | None = None,
        parse: ParseTurn = parse_hermes,
    ) -> None:
        """`positions`: tokens that the model has room for, where that is to be checked."""
        self.engine, self.chat, self.model = engine, chat, model
        self.tokenizer, self.eos_ids, self.parse = tokenizer, eos_ids, parse
        self.sampling, self.limits, self.key = sampling, limits, key
        self.override_sampling, self.positions = override_sampling, positions
        self.loop = asyncio.get_running_loop()
        self.limit: StopReason | None = None
        """The limit that a request met: "turns" or "length"."""
        self.failure: Exception | None = None
        """Of the engine: no fault of the agent's."""
        self.calls = self.malformed = self.requests = 0
        self.asked: tuple[Messages, Tools] = (), ()
        """The last request: the messages that were new in it, and the tools that it showed."""
        self.closed = False
        self._branches: list[_Branch] = []
        self._points: list[_Point] = []
        self._replies: dict[int, _RecordedReply] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle_since, self._idle = time.monotonic(), 0.0

    def submit(self, request: ChatRequest, on_part: OnPart | None = None) -> "Future[ChatReply]":
        if self.closed or self.loop.is_closed():
            raise RequestRefused(410, "the session has ended")
        return asyncio.run_coroutine_threadsafe(self.complete(request, on_part), self.loop)

    async def complete(self, request: ChatRequest, on_part: OnPart | None = None) -> ChatReply:
        """Raises RequestRefused. `on_part` is told when it was accepted, and of tokens as they are
        drawn where the engine can stream."""
        asked = self._accept(request)
        id = f"chatcmpl-{self.key & 0xFFFFFFFF:08x}-{asked.number}"
        head = ChatReply(id, self.model, int(time.time()), asked.prompt, (), asked.sampling.stop)
        on_tokens = None
        if on_part is not None:
            on_part(Part(head))
            on_tokens = lambda *drawn: on_part(Part(head, *drawn))  # noqa: E731
        task = asyncio.current_task()
        assert task is not None
        if not self._tasks:
            self._idle += time.monotonic() - self._idle_since
        self._tasks.add(task)
        try:
            answers = await self._sample(asked, request.choices, on_tokens)
            return replace(head, choices=self._record(asked, answers))
        except BaseException:
            if asked.point is not None:
                asked.point.taken = False
            raise
        finally:
            self._tasks.discard(task)
            self._idle_since = time.monotonic()

    def close(self) -> None:
        """No request is taken any more; those in progress are cancelled."""
        self.closed = True
        for task in self._tasks:
            task.cancel()

    @property
    def idle(self) -> tuple[float, float]:
        """Seconds without a request in progress: of late, and in all. That is the agent's time."""
        late = 0.0 if self._tasks else time.monotonic() - self._idle_since
        return late, self._idle + late

    @property
    def turns(self) -> tuple[int, ...]:
        """Tokens of each reply, segment by segment."""
        return tuple(turn for branch in self._in_order() for turn in branch.turns)

    @property
    def messages(self) -> Messages:
        """What each request brought that was new, and the first of its replies."""
        replies = [self._replies[number] for number in sorted(self._replies)]
        return tuple(message for reply in replies for message in reply.messages)

    @property
    def text(self) -> str:
        """Of the last reply."""
        return self._replies[max(self._replies)].text if self._replies else ""

    @property
    def stop(self) -> StopReason:
        """Why the episode ended, if its agent did not fail."""
        last = self._replies[max(self._replies)].stop if self._replies else "eos"
        return self.limit or last

    def segments(self) -> tuple[Segment, ...]:
        """What was sampled, as it was sampled; each with the prompt that it grew from."""
        made = []
        for number, branch in enumerate(self._in_order()):
            segment = branch.trace.segment(self.stop)
            made.append(replace(segment, completion=replace(segment.completion, segment=number)))
        return tuple(made)

    def _in_order(self) -> list[_Branch]:
        return sorted(self._branches, key=lambda branch: branch.order)

    def _accept(self, request: ChatRequest) -> _Asked:
        """Without an await: requests are numbered, and take their points, in order of arrival."""
        if self.closed:
            raise RequestRefused(410, "the session has ended")
        if len(self._tasks) >= MOST_AT_ONCE:
            raise RequestRefused(429, f"{MOST_AT_ONCE} requests of this session are in progress")
        sampling = request.sampling(self.sampling, override=self.override_sampling)
        messages, tools = chat_messages(request), request.tool_specs
        left = self._tokens_left()
        if self.requests >= self.limits.max_turns:
            self.limit = "turns"
            raise RequestRefused(
                400,
                f"the episode has had its {self.limits.max_turns} turns (environment.max_turns)",
                code="turn_limit",
            )
        held = self._point(messages, tools)
        prompt, continues = self._prompt(held, messages, tools)
        point = held if continues else None
        if self.positions is not None:
            left = min(left, self.positions - len(prompt))
        allowed = min(left, self.sampling.max_tokens, request.max_new_tokens or left)
        # Few different limits: engines take requests with equal settings together. What is streamed
        # cannot be cut afterwards.
        exact = request.max_new_tokens or request.stream
        most = allowed if exact else power_of_two(allowed)
        sampling = replace(sampling, max_tokens=min(self.sampling.max_tokens, most))
        new = messages if held is None else messages[len(held.messages) :]
        number, self.requests = self.requests, self.requests + 1
        self.asked = new, tools
        if point is not None:
            point.taken = True
        return _Asked(number, messages, new, tools, prompt, sampling, allowed, point)

    def _tokens_left(self) -> int:
        left = self.limits.max_tokens - sum(self.turns)
        if left > 0:
            return left
        self.limit = "length"
        raise RequestRefused(
            400,
            f"the episode has had its {self.limits.max_tokens} tokens "
            "(rollout.max_completion_tokens, for all turns together)",
            code="token_limit",
        )

    def _point(self, messages: Messages, tools: Tools) -> _Point | None:
        """The longest conversation held that these messages extend by what is not the model's."""
        fitting = [
            point
            for point in self._points
            if len(point.messages) < len(messages)
            and point.tools == tools
            and all(map(same_message, point.messages, messages))
            and all(m["role"] != "assistant" for m in messages[len(point.messages) :])
        ]
        return max(fitting, key=lambda p: (len(p.messages), not p.taken), default=None)

    def _prompt(
        self, point: _Point | None, messages: Messages, tools: Tools
    ) -> tuple[tuple[int, ...], bool]:
        """The prompt's tokens, and whether the point's segment goes on with them."""
        shown = self._shown(messages)
        try:
            if point is None:
                tokens, continues = self.chat.opening(shown, tools), False
            else:
                behind = len(point.messages)
                following = self.chat.extend(point.held, shown[:behind], shown[behind:], tools)
                tokens = following.tokens
                continues = following.broken is None and not point.taken
        except Exception as error:  # templates are the model's, and messages the agent's
            text = f"the messages cannot be rendered: {error}"
            raise RequestRefused(400, text[:500], param="messages") from error
        self._check_room(len(tokens), messages)
        return tokens, continues

    def _check_room(self, tokens: int, messages: Messages) -> None:
        """A prompt may be as long as the task's may, or grow to by turns and replies."""
        limits, limit = self.limits, [] if self.positions is None else [self.positions - 1]
        if limits.max_prompt_tokens is not None:
            grown = any(message["role"] == "assistant" for message in messages)
            more = limits.max_tokens + limits.max_turns * limits.max_reply_tokens
            limit.append(limits.max_prompt_tokens + (more if grown else 0))
        if tokens > min(limit, default=tokens):
            raise RequestRefused(
                400,
                f"the messages have {tokens} tokens, and {min(limit)} are allowed "
                "(rollout.max_prompt_tokens, environment.max_reply_tokens)",
                param="messages",
                code="context_length_exceeded",
            )

    def _shown(self, messages: Messages) -> list[ChatMessage]:
        """Behind the model's first turn, no message longer than a reply may be."""
        roles = [message["role"] for message in messages]
        first = roles.index("assistant") if "assistant" in roles else len(messages)
        most = self.limits.max_reply_tokens
        return [
            message
            if number <= first or message["role"] == "assistant"
            else cut_message(message, self.tokenizer, most)
            for number, message in enumerate(messages)
        ]

    async def _sample(
        self, asked: _Asked, choices: int, on_tokens: OnTokens | None
    ) -> tuple[Completion, ...]:
        keys = tuple(self._key(asked.number, choice) for choice in range(choices))
        try:
            request = Request(asked.prompt, keys)
            return await sample_stream(self.engine, request, asked.sampling, on_tokens)
        except Exception as error:
            self.failure = error
            raise RequestRefused(500, f"{type(error).__name__} in the engine") from error

    def _key(self, number: int, choice: int) -> int:
        """The first reply's is the episode's own, as that of an answer without an agent."""
        if number == choice == 0:
            return self.key
        parts = (number, choice) if choice else (number,)
        return answer_key(self.key, "turn", *parts)

    def _record(self, asked: _Asked, answers: Sequence[Completion]) -> tuple[ChatChoice, ...]:
        if self.closed:
            raise RequestRefused(410, "the session has ended")
        made = []
        for index, answer in enumerate(answers):
            left = self._tokens_left() if not made else self.limits.max_tokens - sum(self.turns)
            answer = cut_answer(answer, min(max(left, 0), asked.max_tokens))
            choice = ChatChoice(as_message(self._turn(answer, asked)), answer)
            if answer.tokens:
                self._keep(asked, index, choice)
            made.append(choice)
        first = made[0]
        text = decode(first.answer.tokens, self.tokenizer, self.eos_ids)
        reply = _RecordedReply((*asked.new, first.message), text, first.answer.stop)
        self._replies[asked.number] = reply
        return tuple(made)

    def _keep(self, asked: _Asked, index: int, choice: ChatChoice) -> None:
        if asked.point is not None and index == 0:
            branch = asked.point.branch
            branch.trace.append(asked.prompt[len(asked.point.held) :])
        else:
            branch = _Branch((asked.number, index), Trace(asked.prompt))
            self._branches.append(branch)
        branch.trace.add(choice.answer)
        branch.turns.append(len(choice.answer.tokens))
        held = branch.trace.held
        messages = (*asked.messages, choice.message)
        self._points.append(_Point(messages, asked.tools, branch, held))

    def _turn(self, answer: Completion, asked: _Asked) -> Turn:
        """Without tools nothing is a call. What ends at a stop string does not show it."""
        if not asked.tools:
            text = decode(answer.tokens, self.tokenizer, self.eos_ids)
            return Turn(_before_stop(text, answer, asked.sampling.stop), (), answer.stop)
        text = with_special_tokens(answer.tokens, self.tokenizer, self.eos_ids)
        turn = self.parse(_before_stop(text, answer, asked.sampling.stop), answer.stop)
        # Of one session no two calls have the same id: agents find their results by it.
        calls = tuple(
            replace(call, id=call_id(self.calls + number)) for number, call in enumerate(turn.calls)
        )
        self.calls += len(calls)
        self.malformed += sum(bool(call.error) for call in calls)
        return replace(turn, calls=calls)


def _before_stop(text: str, answer: Completion, stops: Sequence[str]) -> str:
    if answer.stop != "stop":
        return text
    positions = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(positions)] if positions else text
