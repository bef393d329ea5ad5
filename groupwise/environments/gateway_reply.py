"""A reply to a chat completion, as OpenAI's clients read it: whole, or as a stream of events."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.environments.base import ChatMessage
from groupwise.environments.gateway_request import ChatRequest
from groupwise.types import Completion


@dataclass(frozen=True)
class Choice:
    """One answer: the assistant's message as the session holds it, and its tokens."""

    message: ChatMessage
    answer: Completion


@dataclass(frozen=True)
class ChatReply:
    id: str
    model: str
    created: int
    prompt_tokens: tuple[int, ...]
    choices: tuple[Choice, ...]


class ReplyWriter:
    """A reply as JSON, whole or in the chunks of a stream."""

    def __init__(self, request: ChatRequest, reply: ChatReply, tokenizer: Any) -> None:
        self.request, self.reply, self.tokenizer = request, reply, tokenizer

    def whole(self) -> dict[str, Any]:
        choices = []
        for index, choice in enumerate(self.reply.choices):
            made = {"index": index, "finish_reason": _finish(choice), "message": _message(choice)}
            made["logprobs"] = self._logprobs(choice)
            choices.append(made | self._token_ids(choice))
        return self._head("chat.completion") | {
            "choices": choices,
            "usage": self._usage(),
            **self._prompt_ids(),
        }

    def chunks(self) -> Iterator[bytes]:
        """Server-sent events. A turn is there as a whole when its first chunk is sent."""
        head = self._head("chat.completion.chunk")
        options = self.request.stream_options
        usage = {"usage": None} if options and options.include_usage else {}
        for index, choice in enumerate(self.reply.choices):
            for number, delta in enumerate(_deltas(choice)):
                made = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None}
                if number == 0:
                    made |= {"logprobs": self._logprobs(choice), **self._token_ids(choice)}
                first = self._prompt_ids() if index == number == 0 else {}
                yield _event({**head, "choices": [made], **usage, **first})
            last = {"index": index, "delta": {}, "finish_reason": _finish(choice)}
            yield _event({**head, "choices": [{**last, "logprobs": None}], **usage})
        if usage:
            yield _event({**head, "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        reply = self.reply
        return {"id": reply.id, "object": kind, "created": reply.created, "model": reply.model}

    def _usage(self) -> dict[str, int]:
        prompt = len(self.reply.prompt_tokens)
        written = sum(len(choice.answer.tokens) for choice in self.reply.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }

    def _prompt_ids(self) -> dict[str, Any]:
        ids = list(self.reply.prompt_tokens)
        return {"prompt_token_ids": ids} if self.request.return_token_ids else {}

    def _token_ids(self, choice: Choice) -> dict[str, Any]:
        return {"token_ids": list(choice.answer.tokens)} if self.request.return_token_ids else {}

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        pairs = zip(choice.answer.tokens, choice.answer.logprobs, strict=True)
        return {"content": [self._logprob(*pair) for pair in pairs], "refusal": None}

    def _logprob(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.tokenizer.decode([token])
        raw = list(text.encode("utf-8", "replace"))
        return {"token": text, "logprob": logprob, "bytes": raw, "top_logprobs": []}


def _finish(choice: Choice) -> str:
    if choice.message.get("tool_calls"):
        return "tool_calls"
    return "length" if choice.answer.stop == "length" else "stop"


def _message(choice: Choice) -> dict[str, Any]:
    """Arguments are text for OpenAI's clients."""
    message = choice.message
    made = {"role": "assistant", "content": message["content"], "refusal": None}
    if calls := message.get("tool_calls"):
        made |= {"content": message["content"] or None, "tool_calls": _written(calls)}
    return made


def _deltas(choice: Choice) -> Iterator[dict[str, Any]]:
    message = _message(choice)
    yield {"role": "assistant", "content": ""}
    for start in range(0, len(message["content"] or ""), 256):
        yield {"content": message["content"][start : start + 256]}
    for index, call in enumerate(message.get("tool_calls", ())):
        yield {"tool_calls": [{"index": index, **call}]}


def _written(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    made = []
    for call in calls:
        arguments = json.dumps(call["function"]["arguments"])
        made.append({**call, "function": {**call["function"], "arguments": arguments}})
    return made


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
