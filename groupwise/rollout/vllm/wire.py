"""A question and its answer as vLLM's token endpoint (`/inference/v1/generate`) has them.

Tokens in, tokens out. Each answer is a request of its own, because each has a seed of its own; the
prompt's keys and values are shared by vLLM's prefix cache. End-of-sequence tokens are ours
(`stop_token_ids`), since vLLM reads one from the model's config and a chat model may have several.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from groupwise.rollout.stopping import StopStrings
from groupwise.types import Completion, Sampling, StopReason

ADAPTER = "policy"
"""The name by which a server knows the adapter that was pushed to it."""
BYTES_PER_TOKEN = 400
"""More than vLLM ever writes about one token of an answer."""


class BadAnswer(ValueError):
    """A reply that is not an answer to what was asked; the message says in what."""


@dataclass(frozen=True)
class Drawn:
    """What a server drew: `ended` is "stop" or "length", `version` the weights that drew it."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended: str
    version: str


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


def encode_question(
    prompt: Sequence[int], params: dict[str, Any], *, adapter: bool = False
) -> bytes:
    question: dict[str, Any] = {"token_ids": list(prompt), "sampling_params": params}
    if adapter:
        question["model"] = ADAPTER
    return json.dumps(question).encode()


def longest_answer(max_tokens: int) -> int:
    """Bytes that a reply may have."""
    return 65536 + BYTES_PER_TOKEN * max_tokens


def decode_answer(body: bytes, vocab: int, max_tokens: int) -> Drawn:
    """Raises BadAnswer for anything that is not one whole answer of one version's weights."""
    choice = _choice(body)
    tokens, ended = _tokens(choice, vocab, max_tokens), choice.get("finish_reason")
    if ended not in ("stop", "length"):
        raise BadAnswer(f"it ended an answer by {str(ended)[:40]!r}")
    logprobs = _logprobs(choice, tokens)
    versions = {_get(span, "version") for span in choice.get("weight_versions") or []}
    if len(versions) != 1:
        raise BadAnswer("an answer is not by one version of the weights")
    return Drawn(tuple(tokens), logprobs, ended, str(versions.pop()))


def encode_probe(tokens: Sequence[int], *, adapter: bool = False) -> bytes:
    """Asks for the log-probs of the tokens themselves, each after those before it."""
    params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
    return encode_question(tokens, params, adapter=adapter)


def decode_probe(body: bytes, tokens: Sequence[int]) -> tuple[float, ...]:
    """Log-probs of all tokens but the first."""
    found = _get(_json(body), "prompt_logprobs")
    if not isinstance(found, list) or len(found) != len(tokens):
        raise BadAnswer("its reply does not hold the log-probs of a prompt")
    logprobs = []
    for token, at in zip(tokens[1:], found[1:], strict=True):
        logprob = _get(_get(at, str(token)), "logprob")
        if not isinstance(logprob, float | int) or not math.isfinite(logprob):
            raise BadAnswer("its reply does not hold the log-probs of a prompt")
        logprobs.append(float(logprob))
    return tuple(logprobs)


def completion(
    drawn: Drawn, version: int, eos_ids: Sequence[int], stops: StopStrings
) -> Completion:
    """Cut where our own rules say that an answer ends, which is where vLLM's almost always do."""
    tokens = drawn.tokens
    ends = [index + 1 for index, token in enumerate(tokens) if token in eos_ids]
    length = ends[0] if ends else len(tokens)
    reason: StopReason = "eos" if ends else "stop" if drawn.ended == "stop" else "length"
    at = stops.first_end(tokens[:length])
    if at is not None and (reason != "eos" or at < length):
        length, reason = at, "stop"
    return Completion(tokens[:length], drawn.logprobs[:length], reason, "", version)


def _choice(body: bytes) -> dict[str, Any]:
    choices = _get(_json(body), "choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise BadAnswer("its reply does not hold one answer")
    return choices[0]


def _logprobs(choice: dict[str, Any], tokens: Sequence[int]) -> tuple[float, ...]:
    content = _get(choice.get("logprobs"), "content")
    if not isinstance(content, list) or len(content) != len(tokens):
        raise BadAnswer("its reply does not hold a log-prob for each token")
    logprobs = []
    for token, at in zip(tokens, content, strict=True):
        logprob = _get(at, "logprob")
        if _get(at, "token_id") != token or not isinstance(logprob, float | int):
            raise BadAnswer("its reply does not hold a log-prob for each token")
        if not -9999 < logprob <= 1e-3:
            raise BadAnswer(f"it gives a drawn token the log-prob {logprob:g}")
        logprobs.append(min(float(logprob), 0.0))
    return tuple(logprobs)


def _tokens(choice: dict[str, Any], vocab: int, max_tokens: int) -> list[int]:
    tokens: Any = choice.get("token_ids")
    if not isinstance(tokens, list) or not 0 < len(tokens) <= max_tokens:
        raise BadAnswer(f"its reply does not hold 1 to {max_tokens} tokens")
    if not all(type(token) is int and 0 <= token < vocab for token in tokens):
        raise BadAnswer("its reply holds tokens that are not in the model's vocabulary")
    return tokens


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadAnswer("its reply is no JSON") from error


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
