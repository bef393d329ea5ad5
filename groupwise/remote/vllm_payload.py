"""Requests and replies as vLLM's token endpoint (`/inference/v1/generate`) has them.

Tokens in, tokens out. Each answer is a request of its own, because each has a seed of its own; the
prompt's keys and values are shared by vLLM's prefix cache. End-of-sequence tokens are ours
(`stop_token_ids`), since vLLM reads one from the model's config and a chat model may have several.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from groupwise.remote.client import ServerUnavailable
from groupwise.rollout.stopping import StopStrings
from groupwise.types import Completion, Sampling, StopReason

ADAPTER = "policy"
"""The name by which a server knows the adapter that was pushed to it."""
BYTES_PER_TOKEN = 400
"""More than vLLM ever writes about one token of an answer."""


class _Token(BaseModel, strict=True):
    token_id: int
    logprob: float


class _Logprobs(BaseModel, strict=True):
    content: list[_Token]


class _Weights(BaseModel, strict=True):
    version: str
    start: Annotated[int, Field(ge=0)]


class _Choice(BaseModel, strict=True):
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    weight_versions: list[_Weights] | None = None


class _CompletionReply(BaseModel, strict=True):
    choices: Annotated[list[_Choice], Field(min_length=1, max_length=1)]


class _Logprob(BaseModel, strict=True):
    logprob: float


class _ProbeReply(BaseModel, strict=True):
    prompt_logprobs: list[dict[str, _Logprob] | None]


@dataclass(frozen=True)
class Sampled:
    """`ended` is "stop" or "length". `parts` are (first token, label of its weights), one after the
    other: several where weights changed while it grew."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: str
    parts: tuple[tuple[int, str], ...]


def sampling_params(key: int, sampling: Sampling, eos_ids: Sequence[int]) -> dict[str, Any]:
    """Arguments of vLLM's SamplingParams, all that matter: no default of the server's is left."""
    return {
        "seed": key >> 1,  # 63 bits: vLLM takes signed ones
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "stop": list(sampling.stop),
        "stop_token_ids": list(eos_ids),
        "ignore_eos": True,
        "detokenize": bool(sampling.stop),
        "logprobs": 0,  # of the drawn token alone
    }


def encode_request(
    prompt: Sequence[int], params: dict[str, Any], *, adapter: bool = False
) -> bytes:
    model = {"model": ADAPTER} if adapter else {}
    return json.dumps({"token_ids": list(prompt), "sampling_params": params} | model).encode()


def max_response_bytes(tokens: int) -> int:
    return 65536 + BYTES_PER_TOKEN * tokens


def decode_response(body: bytes, vocab: int, max_tokens: int) -> Sampled:
    """Raises ServerUnavailable for anything that is not one answer, with whose weights drew it."""
    try:
        (choice,) = _CompletionReply.model_validate_json(body).choices
    except ValidationError as error:
        no_json = error.errors()[0]["type"] == "json_invalid"
        what = "is no JSON" if no_json else "does not hold one answer"
        raise ServerUnavailable(f"its reply {what}") from error
    tokens = tuple(choice.token_ids)
    drawn = choice.logprobs.content if choice.logprobs else []
    parts = tuple((part.start, part.version) for part in choice.weight_versions or [])
    if not 0 < len(tokens) <= max_tokens:
        raise ServerUnavailable(f"its reply does not hold 1 to {max_tokens} tokens")
    if not 0 <= min(tokens) <= max(tokens) < vocab:
        raise ServerUnavailable("its reply holds tokens that are not in the model's vocabulary")
    if choice.finish_reason not in ("stop", "length"):
        raise ServerUnavailable(f"it ended an answer by {str(choice.finish_reason)[:40]!r}")
    if tuple(token.token_id for token in drawn) != tokens:
        raise ServerUnavailable("its reply does not hold a log-prob for each token")
    if not all(-9999 < token.logprob <= 1e-3 for token in drawn):  # not a number is neither
        raise ServerUnavailable("it gives a sampled token a log-prob that cannot be")
    starts = [start for start, _ in parts]
    if not starts or starts[0] or starts != sorted(set(starts)) or starts[-1] >= len(tokens):
        raise ServerUnavailable("an answer does not say which version of the weights drew it")
    logprobs = tuple(min(token.logprob, 0.0) for token in drawn)
    return Sampled(tokens, logprobs, choice.finish_reason, parts)


def encode_probe(tokens: Sequence[int], *, adapter: bool = False) -> bytes:
    """Asks for the log-probs of the tokens themselves, each after those before it."""
    params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
    return encode_request(tokens, params, adapter=adapter)


def decode_probe(body: bytes, tokens: Sequence[int]) -> tuple[float, ...]:
    """Log-probs of all tokens but the first."""
    try:
        steps = _ProbeReply.model_validate_json(body).prompt_logprobs[1:]
        pairs = zip(tokens[1:], steps, strict=True)
        logprobs = tuple((step or {})[str(token)].logprob for token, step in pairs)
    except (ValidationError, ValueError, KeyError) as error:
        raise ServerUnavailable("its reply does not hold the log-probs of a prompt") from error
    if not all(map(math.isfinite, logprobs)):
        raise ServerUnavailable("its log-probs of a prompt are not finite")
    return logprobs


def completion(
    sampled: Sampled, version_of: Callable[[str], int], eos_ids: Sequence[int], stops: StopStrings
) -> Completion:
    """Cut where our own rules say that an answer ends, which is where vLLM's almost always do."""
    tokens = sampled.tokens
    ends = [index + 1 for index, token in enumerate(tokens) if token in eos_ids]
    length = ends[0] if ends else len(tokens)
    reason: StopReason = "eos" if ends else "stop" if sampled.ended == "stop" else "length"
    at = stops.first_end(tokens[:length])
    if at is not None and (reason != "eos" or at < length):
        length, reason = at, "stop"
    parts = tuple((start, version_of(label)) for start, label in sampled.parts if start < length)
    return Completion(
        tokens[:length],
        sampled.logprobs[:length],
        reason,
        version=min(version for _, version in parts),
        versions=parts if len(parts) > 1 else (),
    )
