"""What a trainer asks of a worker that samples, and what that answers.

What arrives is checked on both sides before it is used.
"""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, Field

from groupwise.config import AdapterSettings
from groupwise.config.base import Settings
from groupwise.config.engine import AnyEngine
from groupwise.config.run import Fp8
from groupwise.remote.payload import (
    MAX_HEADER_BYTES,
    BadPayload,
    Counts,
    Logprobs,
    ModelLimits,
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


class RunSettings(Settings):
    """What a run tells a worker when it begins, so that it samples as the trainer would."""

    run: str = Field(min_length=8, max_length=64)
    """A name that no other run has."""
    adapter: AdapterSettings | None
    engine: AnyEngine
    compile: Literal["auto", "all", "sampling", "none"]
    fp8: Fp8 = "none"


class _Sampling(BaseModel, strict=True, extra="forbid", allow_inf_nan=False):
    max_tokens: int = Field(ge=1, le=2**20)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0)
    stop: list[Annotated[str, Field(min_length=1)]] = []


class _SampleBody(Payload):
    tokens: Tokens
    """Every prompt, end to end."""
    lengths: Counts
    answers: Counts
    """How many each prompt wants."""
    keys: Annotated[list[int], torch.int64]
    """The random key of every answer."""
    sampling: _Sampling
    run: str
    version: Annotated[int, Field(ge=0)] | None
    """Whose answers are wanted; None: by whatever weights there are, also while these change."""


class _SampleReply(Payload):
    """The answers to one of the prompts."""

    tokens: Tokens
    lengths: Tokens
    logprobs: Logprobs
    stops: Annotated[list[Annotated[int, Field(lt=len(STOPS))]], torch.uint8]
    parts: Counts
    """Of each answer: parts that different weights drew."""
    starts: Tokens
    """The first token of each part."""
    versions: Annotated[list[Annotated[int, Field(ge=0)]], torch.int64]
    """Of the weights that drew each part."""
    run: str


@dataclass(frozen=True)
class GenerateRequest:
    """Some prompts, sampled under one setting by one version of a run's weights (None: any).

    They were asked for at the same time, and enter the worker's engine at the same time.
    """

    requests: tuple[Request, ...]
    sampling: Sampling
    run: str
    version: int | None

    @property
    def answers(self) -> int:
        return sum(len(request.keys) for request in self.requests)

    @property
    def max_response_bytes(self) -> int:
        """At most: each token may be a part of its own."""
        answers = self.answers * (20 * self.sampling.max_tokens + 32)
        return answers + len(self.requests) * 2 * MAX_HEADER_BYTES


def encode_request(asked: GenerateRequest) -> bytes:
    requests = asked.requests
    return _SampleBody(
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
    body = _SampleBody.decode(content)
    if len(body.keys) > MAX_ANSWERS or len(body.tokens) > MAX_PROMPT_TOKENS:
        raise PayloadTooLarge(
            f"a request has at most {MAX_ANSWERS} answers and {MAX_PROMPT_TOKENS} tokens"
        )
    if len(body.lengths) != len(body.answers):
        raise BadPayload("lengths and answers must have one number for each prompt")
    prompts = split(body.tokens, body.lengths)
    keys = split([key % _KEYS for key in body.keys], body.answers)
    sampling = Sampling(**{**body.sampling.model_dump(), "stop": tuple(body.sampling.stop)})
    limits.check(body.tokens, max(body.lengths) + sampling.max_tokens - 1)
    requests = tuple(map(Request, prompts, keys))
    return GenerateRequest(requests, sampling, body.run, body.version)


def encode_response(answers: Sequence[Completion], run: str) -> bytes:
    """The answers to one prompt."""
    parts = [answer.versions or ((0, answer.version),) for answer in answers]
    return _SampleReply.model_construct(
        tokens=[token for answer in answers for token in answer.tokens],
        lengths=[len(answer.tokens) for answer in answers],
        logprobs=[logprob for answer in answers for logprob in answer.logprobs],
        stops=[STOPS.index(answer.stop) for answer in answers],
        parts=[len(own) for own in parts],
        starts=[start for own in parts for start, _ in own],
        versions=[version for own in parts for _, version in own],
        run=run,
    ).encode()


def decode_response(
    content: bytes, request: Request, asked: GenerateRequest, vocab: int
) -> tuple[Completion, ...]:
    """The answers to this prompt and to no other; raises BadPayload for anything else."""
    reply = _SampleReply.decode(content)
    if reply.run != asked.run:
        raise BadPayload("the reply was not sampled with weights of this run")
    if asked.version is not None and set(reply.versions) != {asked.version}:
        reason = f"the reply is by weights {sorted(set(reply.versions))}, not by {asked.version}"
        raise BadPayload(reason)
    short = all(length <= asked.sampling.max_tokens for length in reply.lengths)
    counts = {len(reply.lengths), len(reply.stops), len(reply.parts)}
    if not short or counts != {len(request.keys)}:
        raise BadPayload(f"the reply does not hold {len(request.keys)} answers, or too long ones")
    if len(reply.starts) != len(reply.versions):
        raise BadPayload("starts and versions must have one number for each part of an answer")
    check_vocabulary(reply.tokens, vocab)
    tokens, logprobs = split(reply.tokens, reply.lengths), split(reply.logprobs, reply.lengths)
    parts = split(list(zip(reply.starts, reply.versions, strict=True)), reply.parts)
    fields = zip(tokens, logprobs, reply.stops, parts, strict=True)
    return tuple(_completion(own, likely, STOPS[stop], part) for own, likely, stop, part in fields)


def _completion(
    tokens: tuple[int, ...],
    logprobs: tuple[float, ...],
    stop: StopReason,
    parts: tuple[tuple[int, int], ...],
) -> Completion:
    starts = [start for start, _ in parts]
    ascending = starts[0] == 0 and all(a < b for a, b in itertools.pairwise(starts))
    if not ascending or starts[-1] >= max(len(tokens), 1):
        raise BadPayload("the parts of an answer do not join without gaps")
    oldest = min(version for _, version in parts)
    versions = parts if len(parts) > 1 else ()
    return Completion(tokens, logprobs, stop, "", oldest, versions=versions)


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
