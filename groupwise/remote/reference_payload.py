"""A request for log-probs and its reply. What arrives is checked before it is used.

A request holds whole groups rather than rows, so a prompt travels once and is computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field

from groupwise.remote.payload import (
    MAX_HEADER_BYTES,
    BadPayload,
    Counts,
    Logprobs,
    ModelLimits,
    Payload,
    PayloadTooLarge,
    Tokens,
    split,
)
from groupwise.types import Completion, Group, Problem

Temperature = Annotated[float, Field(gt=0)]


class _LogprobsBody(Payload):
    tokens: Tokens
    """Every group's prompt, then its answers, end to end."""
    lengths: Tokens
    """How long each of those is."""
    answers: Counts
    """How many answers each group has."""
    temperatures: Annotated[list[Temperature], torch.float32]
    """Of each answer; empty where all were drawn at `temperature`."""
    temperature: Temperature
    layout: Literal["shared_prefix", "padded"]
    exact: bool


class _LogprobsReply(Payload):
    logprobs: Logprobs
    """Of every token of the answers, in order."""
    model: str


@dataclass(frozen=True)
class ReferenceLimits:
    """What a server takes: `tokens` on the rows of one request, and what its model does."""

    tokens: int
    model: ModelLimits

    @property
    def body_bytes(self) -> int:
        """Tokens, lengths and temperatures have 4 bytes each, and no more of them than tokens."""
        return 16 * self.tokens + 2 * MAX_HEADER_BYTES


@dataclass(frozen=True)
class LogprobsRequest:
    """Groups to be scored. `exact`: in a forward pass of their own, for bit-equal numbers."""

    groups: tuple[Group, ...]
    temperature: float
    layout: str
    exact: bool

    @property
    def tokens(self) -> int:
        """On the rows that the model reads."""
        return row_tokens(self.groups, self.layout)

    @property
    def completions(self) -> dict[tuple[int, int], Completion]:
        """By (group, answer), in the order of the reply."""
        return {
            (g, a): completion
            for g, group in enumerate(self.groups)
            for a, completion in enumerate(group.completions)
        }

    @property
    def max_response_bytes(self) -> int:
        return 4 * sum(len(c.tokens) for c in self.completions.values()) + 2 * MAX_HEADER_BYTES


def row_tokens(groups: Sequence[Group], layout: str) -> int:
    rows = [
        (len(group.prompt_tokens), [max(len(c.tokens) - 1, 0) for c in group.completions])
        for group in groups
    ]
    if layout == "padded":
        longest = max((prompt + max(answers) for prompt, answers in rows), default=0)
        return longest * sum(len(answers) for _, answers in rows)
    return sum(prompt + sum(answers) for prompt, answers in rows)


def encode_request(request: LogprobsRequest) -> bytes:
    spans: list[tuple[int, ...]] = []
    for group in request.groups:
        spans += [group.prompt_tokens, *(c.tokens for c in group.completions)]
    own = [c.temperature for c in request.completions.values() if c.temperature is not None]
    return _LogprobsBody.model_construct(
        tokens=[token for span in spans for token in span],
        lengths=[len(span) for span in spans],
        answers=[len(group.completions) for group in request.groups],
        temperatures=own if len(own) == len(request.completions) else [],
        temperature=request.temperature,
        layout=request.layout,
        exact=request.exact,
    ).encode()


def decode_request(content: bytes, limits: ReferenceLimits) -> LogprobsRequest:
    """Raises BadPayload for anything else than a request within the limits."""
    if len(content) > limits.body_bytes:
        raise PayloadTooLarge(f"a body may have {limits.body_bytes} bytes, not {len(content)}")
    body = _LogprobsBody.decode(content)
    rows = split(split(body.tokens, body.lengths), [1 + count for count in body.answers])
    own = split(body.temperatures or [None] * sum(body.answers), body.answers)
    groups = []
    for (prompt, *answers), temperatures in zip(rows, own, strict=True):
        if not prompt:
            raise BadPayload("a prompt needs one token or more")
        completions = tuple(
            Completion(tokens, (0.0,) * len(tokens), "eos", temperature=temperature)
            for tokens, temperature in zip(answers, temperatures, strict=True)
        )
        groups.append(Group(Problem("", ""), prompt, completions))
    request = LogprobsRequest(tuple(groups), body.temperature, body.layout, body.exact)
    if request.tokens > limits.tokens:
        raise PayloadTooLarge(
            f"{request.tokens} tokens at once, and this server takes {limits.tokens}: "
            "start it with --tokens, or lower batch.tokens_per_microbatch"
        )
    longest = max(len(row[0]) + max(map(len, row[1:])) for row in rows) - 1
    limits.model.check(body.tokens, longest)
    return request


def encode_response(answers: Sequence[Sequence[float]], model: str) -> bytes:
    """The log-probs of each answer, in the order of the request."""
    logprobs = [logprob for answer in answers for logprob in answer]
    return _LogprobsReply.model_construct(logprobs=logprobs, model=model).encode()


def decode_response(
    content: bytes, request: LogprobsRequest
) -> tuple[list[tuple[float, ...]], str]:
    """The log-probs of each answer, and which model gave them; BadPayload for anything else."""
    reply = _LogprobsReply.decode(content)
    lengths = [len(completion.tokens) for completion in request.completions.values()]
    return [tuple(part) for part in split(reply.logprobs, lengths)], reply.model
