"""A reply to a chat completion, as OpenAI's clients read it: whole, or as a stream of events."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.environments.base import ChatMessage
from groupwise.environments.gateway_request import ChatRequest
from groupwise.policy.prompts import decode
from groupwise.policy.tokenizing import text_of
from groupwise.types import Completion


@dataclass(frozen=True)
class ChatChoice:
    """One answer: the assistant's message as the session holds it, and its tokens."""

    message: ChatMessage
    answer: Completion


@dataclass(frozen=True)
class ChatReply:
    id: str
    model: str
    created: int
    prompt_tokens: tuple[int, ...]
    choices: tuple[ChatChoice, ...]
    stop: tuple[str, ...] = ()
    """The strings that end a choice, and are not shown."""


@dataclass(frozen=True)
class Part:
    """Tokens of a choice that were drawn since the last part; the first of a reply has none."""

    head: ChatReply
    index: int = 0
    tokens: Sequence[int] = ()
    logprobs: Sequence[float] = ()


OnPart = Callable[[Part], None]


class ReplyWriter:
    """A reply as JSON, whole or in the chunks of a stream."""

    def __init__(self, request: ChatRequest, tokenizer: Any, eos_ids: tuple[int, ...]) -> None:
        self.request, self.tokenizer, self.eos_ids = request, tokenizer, eos_ids
        self._tokens: dict[int, list[int]] = {}
        self._sent: dict[int, str] = {}

    def whole(self, reply: ChatReply) -> dict[str, Any]:
        choices = []
        for index, choice in enumerate(reply.choices):
            made = {"index": index, "finish_reason": _finish(choice), "message": _message(choice)}
            answer = choice.answer
            choices.append(made | self._drawn(answer.tokens, answer.logprobs))
        return _head(reply, "chat.completion") | {
            "choices": choices,
            "usage": _usage(reply),
            **self._prompt_ids(reply),
        }

    def part(self, part: Part) -> Iterator[bytes]:
        """The events of what was drawn. With tools nothing is said before the end: only then it is
        known what is text and what is a call."""
        if self.request.tool_specs or not part.tokens:
            return
        if part.index not in self._sent:
            yield self._opening(part.head, part.index, (), ())
        tokens = self._tokens.setdefault(part.index, [])
        tokens += part.tokens
        text = _settled(decode(tokens, self.tokenizer, self.eos_ids), part.head.stop)
        sent = self._sent[part.index]
        new = text[len(sent) :] if text.startswith(sent) else ""
        self._sent[part.index] += new
        yield self._chunk(part.head, part.index, {"content": new}, part.tokens, part.logprobs)

    def end(self, reply: ChatReply) -> Iterator[bytes]:
        """The events of what has not been sent yet, and the last ones."""
        for index, choice in enumerate(reply.choices):
            answer, told = choice.answer, len(self._tokens.get(index, ()))
            drawn = answer.tokens[told:], answer.logprobs[told:]
            if index not in self._sent:
                yield self._opening(reply, index, *drawn)
                drawn = (), ()
            message = _message(choice)
            rest = (message["content"] or "")[len(self._sent[index]) :]
            if rest or drawn[0]:
                yield self._chunk(reply, index, {"content": rest}, *drawn)
            for number, call in enumerate(message.get("tool_calls", ())):
                yield self._chunk(reply, index, {"tool_calls": [{"index": number, **call}]})
            yield self._chunk(reply, index, {}, finish=_finish(choice))
        if self._usage_asked:
            head = _head(reply, "chat.completion.chunk")
            yield _event({**head, "choices": [], "usage": _usage(reply)})
        yield b"data: [DONE]\n\n"

    def _opening(
        self, reply: ChatReply, index: int, tokens: Sequence[int], logprobs: Sequence[float]
    ) -> bytes:
        first = self._prompt_ids(reply) if not self._sent else {}
        self._sent[index] = ""
        delta = {"role": "assistant", "content": ""}
        return self._chunk(reply, index, delta, tokens, logprobs, **first)

    def _chunk(
        self,
        reply: ChatReply,
        index: int,
        delta: Mapping[str, Any],
        tokens: Sequence[int] = (),
        logprobs: Sequence[float] = (),
        finish: str | None = None,
        **more: Any,
    ) -> bytes:
        made = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}
        if tokens:
            made |= self._drawn(tokens, logprobs)
        usage = {"usage": None} if self._usage_asked else {}
        head = _head(reply, "chat.completion.chunk")
        return _event({**head, "choices": [made], **usage, **more})

    @property
    def _usage_asked(self) -> bool:
        options = self.request.stream_options
        return bool(options and options.include_usage)

    def _prompt_ids(self, reply: ChatReply) -> dict[str, Any]:
        ids = list(reply.prompt_tokens)
        return {"prompt_token_ids": ids} if self.request.return_token_ids else {}

    def _drawn(self, tokens: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any]:
        """Tokens and log-probs, as far as they were asked for."""
        listed = None
        if self.request.logprobs:
            entries = [self._logprob(*pair) for pair in zip(tokens, logprobs, strict=True)]
            listed = {"content": entries, "refusal": None}
        ids = {"token_ids": list(tokens)} if self.request.return_token_ids else {}
        return {"logprobs": listed, **ids}

    def _logprob(self, token: int, logprob: float) -> dict[str, Any]:
        text = text_of(self.tokenizer, [token])
        raw = list(text.encode("utf-8", "replace"))
        return {"token": text, "logprob": logprob, "bytes": raw, "top_logprobs": []}


def _settled(text: str, stops: Sequence[str]) -> str:
    """The part of the text that further tokens cannot change, nor take back as a stop string."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    text = text[: min(ends, default=len(text))]
    begun = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    text = text[: len(text) - max(begun, default=0)]
    return text.rstrip("\ufffd").rstrip()


def _head(reply: ChatReply, kind: str) -> dict[str, Any]:
    return {"id": reply.id, "object": kind, "created": reply.created, "model": reply.model}


def _usage(reply: ChatReply) -> dict[str, int]:
    prompt = len(reply.prompt_tokens)
    written = sum(len(choice.answer.tokens) for choice in reply.choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
    }


def _finish(choice: ChatChoice) -> str:
    if choice.message.get("tool_calls"):
        return "tool_calls"
    return "length" if choice.answer.stop == "length" else "stop"


def _message(choice: ChatChoice) -> dict[str, Any]:
    """Arguments are text for OpenAI's clients."""
    message = choice.message
    made = {"role": "assistant", "content": message["content"], "refusal": None}
    if calls := message.get("tool_calls"):
        made |= {"content": message["content"] or None, "tool_calls": _written(calls)}
    return made


def _written(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    made = []
    for call in calls:
        arguments = json.dumps(call["function"]["arguments"])
        made.append({**call, "function": {**call["function"], "arguments": arguments}})
    return made


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
