"""What a trainer asks of a worker that samples, and what that answers.

What arrives is checked on both sides before it is used.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, Field

from groupwise.config import AdapterSettings, EngineSettings
from groupwise.config.base import Settings
from groupwise.remote.payload import (
    MAX_HEADER_BYTES,
    BadPayload,
    Counts,
    Logprobs,
    Payload,
    PayloadTooLarge,
    Tokens,
    check_vocabulary,
    split,
)
from groupwise.types import Completion, Request, Sampling, StopReason

STOPS: tuple[StopReason, ...] = ("eos", "stop", "length")
MAX_ANSWERS, MAX_PROMPT_TOKENS = 16384, 2**22
"""Of one request: answers, and tokens of all its prompts."""
MAX_BODY_BYTES = 4 * MAX_PROMPT_TOKENS + 16 * MAX_ANSWERS + 2 * MAX_HEADER_BYTES
_KEYS = 1 << 64

Answers = list[tuple[Completion, ...]]


class RunSettings(Settings):
    """What a run tells a worker when it begins, so that it samples as the trainer would."""

    run: str = Field(min_length=8, max_length=64)
    """A name that no other run has."""
    adapter: AdapterSettings | None
    engine: EngineSettings
    compile: Literal["auto", "all", "sampling", "none"]


class _Sampling(BaseModel, strict=True, extra="forbid", allow_inf_nan=False):
    max_tokens: int = Field(ge=1, le=2**20)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0)
    stop: list[Annotated[str, Field(min_length=1)]] = []


class _Body(Payload):
    tokens: Tokens
    """Every prompt, end to end."""
    lengths: Counts
    answers: Counts
    """How many each prompt wants."""
    keys: Annotated[list[int], torch.int64]
    """The random key of every answer."""
    sampling: _Sampling
    run: str
    version: int = Field(ge=0)


class _Reply(Payload):
    tokens: Tokens
    lengths: Tokens
    logprobs: Logprobs
    stops: Annotated[list[Annotated[int, Field(lt=len(STOPS))]], torch.uint8]
    run: str
    version: int


@dataclass(frozen=True)
class GenerateRequest:
    """Some prompts, sampled under one setting by one version of a run's weights."""

    requests: tuple[Request, ...]
    sampling: Sampling
    run: str
    version: int

    @property
    def answers(self) -> int:
        return sum(len(request.keys) for request in self.requests)

    @property
    def max_response_bytes(self) -> int:
        return self.answers * (8 * self.sampling.max_tokens + 8) + 2 * MAX_HEADER_BYTES


@dataclass(frozen=True)
class ModelLimits:
    """What a model takes: its vocabulary, and tokens on a row (None: any number)."""

    vocab: int
    positions: int | None


def encode_request(asked: GenerateRequest) -> bytes:
    requests = asked.requests
    return _Body(
        tokens=[token for request in requests for token in request.prompt_tokens],
        lengths=[len(request.prompt_tokens) for request in requests],
        answers=[len(request.keys) for request in requests],
        keys=[key - _KEYS * (key >> 63) for request in requests for key in request.keys],
        sampling=_Sampling(**{**asdict(asked.sampling), "stop": list(asked.sampling.stop)}),
        run=asked.run,
        version=asked.version,
    ).encode()


def decode_request(content: bytes, limits: ModelLimits) -> GenerateRequest:
    """Raises BadPayload for anything else than a request that the model can do."""
    body = _Body.decode(content)
    if len(body.keys) > MAX_ANSWERS or len(body.tokens) > MAX_PROMPT_TOKENS:
        raise PayloadTooLarge(
            f"a request has at most {MAX_ANSWERS} answers and {MAX_PROMPT_TOKENS} tokens"
        )
    if len(body.lengths) != len(body.answers):
        raise BadPayload("every prompt has a length, and wants a number of answers")
    prompts = split(body.tokens, body.lengths)
    keys = split([key % _KEYS for key in body.keys], body.answers)
    sampling = Sampling(**{**body.sampling.model_dump(), "stop": tuple(body.sampling.stop)})
    longest = max(body.lengths)
    if limits.positions is not None and longest + sampling.max_tokens - 1 > limits.positions:
        raise PayloadTooLarge(
            f"a prompt of {longest} tokens and an answer of {sampling.max_tokens}, and the model "
            f"has {limits.positions} places"
        )
    check_vocabulary(body.tokens, limits.vocab)
    requests = tuple(map(Request, prompts, keys))
    return GenerateRequest(requests, sampling, body.run, body.version)


def encode_response(answers: Answers, asked: GenerateRequest) -> bytes:
    flat = [completion for group in answers for completion in group]
    return _Reply.model_construct(
        tokens=[token for completion in flat for token in completion.tokens],
        lengths=[len(completion.tokens) for completion in flat],
        logprobs=[logprob for completion in flat for logprob in completion.logprobs],
        stops=[STOPS.index(completion.stop) for completion in flat],
        run=asked.run,
        version=asked.version,
    ).encode()


def decode_response(content: bytes, asked: GenerateRequest, vocab: int) -> Answers:
    """Answers to this request and to no other; raises BadPayload for anything else."""
    reply = _Reply.decode(content)
    if (reply.run, reply.version) != (asked.run, asked.version):
        reason = f"the reply is by weights {reply.version}, not by {asked.version} of this run"
        raise BadPayload(reason)
    short = all(length <= asked.sampling.max_tokens for length in reply.lengths)
    if not short or not len(reply.lengths) == len(reply.stops) == asked.answers:
        raise BadPayload(f"the reply is not {asked.answers} answers")
    check_vocabulary(reply.tokens, vocab)
    tokens, logprobs = split(reply.tokens, reply.lengths), split(reply.logprobs, reply.lengths)
    completions = iter(
        Completion(own, likely, STOPS[stop], "", asked.version)
        for own, likely, stop in zip(tokens, logprobs, reply.stops, strict=True)
    )
    return [tuple(next(completions) for _ in request.keys) for request in asked.requests]


def split_requests(requests: Sequence[Request], parts: int) -> list[tuple[Request, ...]]:
    """Runs of neighbours with about as many answers each, one for each of `parts` workers.

    A function of the requests and the number of workers alone: which worker takes which run, and
    which has died, changes no digit of an answer. A request stays whole.
    """
    total = sum(len(request.keys) for request in requests)
    runs: dict[int, list[Request]] = {}
    before = 0
    for request in requests:
        runs.setdefault(before * parts // total, []).append(request)
        before += len(request.keys)
    if parts < len(requests) and any(_is_too_large(run) for run in runs.values()):
        return split_requests(requests, 2 * parts)
    return [tuple(run) for run in runs.values()]


def _is_too_large(run: Sequence[Request]) -> bool:
    tokens = sum(len(request.prompt_tokens) for request in run)
    return tokens > MAX_PROMPT_TOKENS or sum(len(request.keys) for request in run) > MAX_ANSWERS
