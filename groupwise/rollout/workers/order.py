"""What travels between a trainer and a worker that samples: safetensors bytes, no pickle.

An order is some requests, drawn under one sampling setting by one version of a run's weights:

    tokens   int32, every request's prompt, end to end
    lengths  int32, how long each prompt is
    answers  int32, how many answers each wants
    keys     int64, the random key of every answer

with `sampling` (JSON), `run` and `version` as text in the header. The reply holds the answers:

    tokens int32, lengths int32, logprobs float32, stops uint8 (the place in STOPS)

What arrives is checked on both sides before it is used.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from safetensors.torch import save

from groupwise.serve.wire import LONGEST_HEADER, BadBody, TooLarge, decode_tensors, int32
from groupwise.types import Completion, Request, Sampling, StopReason

STOPS: tuple[StopReason, ...] = ("eos", "stop", "length")
MOST_ANSWERS, MOST_TOKENS = 16384, 2**22
"""Of one order: answers, and tokens of all its prompts."""
LARGEST_ORDER = 4 * MOST_TOKENS + 16 * MOST_ANSWERS + 2 * LONGEST_HEADER
MOST_NEW_TOKENS = 2**20
_WRAP = 1 << 64

Answers = list[tuple[Completion, ...]]


@dataclass(frozen=True)
class Order:
    requests: tuple[Request, ...]
    sampling: Sampling
    run: str
    version: int

    @property
    def answers(self) -> int:
        return sum(len(request.keys) for request in self.requests)


@dataclass(frozen=True)
class Bounds:
    """What a model takes: its vocabulary, and tokens on a row (None: any number)."""

    vocab: int
    positions: int | None


def encode_order(order: Order) -> bytes:
    requests = order.requests
    keys = [key - _WRAP * (key >> 63) for request in requests for key in request.keys]
    tensors = {
        "tokens": int32([token for request in requests for token in request.prompt_tokens]),
        "lengths": int32([len(request.prompt_tokens) for request in requests]),
        "answers": int32([len(request.keys) for request in requests]),
        "keys": torch.tensor(keys, dtype=torch.int64),
    }
    sampling = json.dumps(asdict(order.sampling))
    return save(tensors, {"sampling": sampling, "run": order.run, "version": str(order.version)})


def decode_order(body: bytes, bounds: Bounds) -> Order:
    """The order in a request's body; raises BadBody for anything else."""
    if len(body) > LARGEST_ORDER:
        raise TooLarge(f"a body may have {LARGEST_ORDER} bytes, this one has {len(body)}")
    tensors, header = decode_tensors(body)
    dtypes = {name: tensor.dtype for name, tensor in tensors.items() if tensor.ndim == 1}
    narrow = dict.fromkeys(("tokens", "lengths", "answers"), torch.int32)
    if dtypes != {**narrow, "keys": torch.int64} or len(tensors) != len(dtypes):
        raise BadBody("an order holds rows of int32 tokens, lengths, answers and of int64 keys")
    requests = _requests(**{name: tensor.tolist() for name, tensor in tensors.items()})
    version = header.get("version", "")
    if not (version.isascii() and version.isdigit() and len(version) < 16):
        raise BadBody("the header needs a version, which is a number")
    order = Order(
        requests, _sampling(header.get("sampling", "")), header.get("run", ""), int(version)
    )
    _check(order, bounds)
    return order


def encode_answers(answers: Answers, order: Order) -> bytes:
    flat = [completion for group in answers for completion in group]
    tensors = {
        "tokens": int32([token for completion in flat for token in completion.tokens]),
        "lengths": int32([len(completion.tokens) for completion in flat]),
        "logprobs": torch.tensor(
            [logprob for c in flat for logprob in c.logprobs], dtype=torch.float32
        ),
        "stops": torch.tensor([STOPS.index(c.stop) for c in flat], dtype=torch.uint8),
    }
    return save(tensors, {"run": order.run, "version": str(order.version)})


def decode_answers(body: bytes, order: Order, vocab: int) -> Answers:
    """Answers to the order and to no other; raises BadBody for anything else."""
    tensors, header = decode_tensors(body)
    if header.get("run") != order.run or header.get("version") != str(order.version):
        raise BadBody(
            f"the reply is by weights {header.get('version')!r}, not by {order.version} of this run"
        )
    wanted = {
        "tokens": torch.int32,
        "lengths": torch.int32,
        "logprobs": torch.float32,
        "stops": torch.uint8,
    }
    if {name: t.dtype for name, t in tensors.items() if t.ndim == 1} != wanted:
        raise BadBody("the reply does not hold answers")
    lengths, stops = tensors["lengths"].tolist(), tensors["stops"].tolist()
    fits = len(lengths) == len(stops) == order.answers and set(stops) <= set(range(len(STOPS)))
    fits = fits and all(0 <= length <= order.sampling.max_tokens for length in lengths)
    if not fits or not sum(lengths) == len(tensors["tokens"]) == len(tensors["logprobs"]):
        raise BadBody(f"the reply is not {order.answers} answers")
    if not _in_vocabulary(tensors["tokens"].tolist(), vocab) or tensors["logprobs"].isinf().any():
        raise BadBody("the reply holds tokens or log-probs that cannot be")
    parts = zip(
        tensors["tokens"].split(lengths), tensors["logprobs"].split(lengths), stops, strict=True
    )
    made = iter(
        Completion(tuple(tokens.tolist()), tuple(logprobs.tolist()), STOPS[stop], "", order.version)
        for tokens, logprobs, stop in parts
    )
    return [tuple(next(made) for _ in request.keys) for request in order.requests]


def longest_reply(order: Order) -> int:
    """Bytes that the answers to an order may have."""
    return order.answers * (8 * order.sampling.max_tokens + 8) + 2 * LONGEST_HEADER


def cut(requests: Sequence[Request], parts: int) -> list[tuple[Request, ...]]:
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
    if parts < len(requests) and any(_too_large(run) for run in runs.values()):
        return cut(requests, 2 * parts)
    return [tuple(run) for run in runs.values()]


def _too_large(run: Sequence[Request]) -> bool:
    tokens = sum(len(request.prompt_tokens) for request in run)
    return tokens > MOST_TOKENS or sum(len(request.keys) for request in run) > MOST_ANSWERS


def _requests(
    tokens: list[int], lengths: list[int], answers: list[int], keys: list[int]
) -> tuple[Request, ...]:
    if len(lengths) != len(answers) or min(lengths, default=0) < 1 or min(answers, default=0) < 1:
        raise BadBody("every request has a prompt of a token or more, and wants an answer or more")
    if sum(lengths) != len(tokens) or sum(answers) != len(keys):
        raise BadBody("lengths must add up to the tokens, answers to the keys")
    if len(keys) > MOST_ANSWERS or len(tokens) > MOST_TOKENS:
        raise TooLarge(f"an order has at most {MOST_ANSWERS} answers and {MOST_TOKENS} tokens")
    found, at, key = [], 0, 0
    for length, count in zip(lengths, answers, strict=True):
        own = tuple(value % _WRAP for value in keys[key : key + count])
        found.append(Request(tuple(tokens[at : at + length]), own))
        at, key = at + length, key + count
    return tuple(found)


def _sampling(text: str) -> Sampling:
    try:
        data: dict[str, Any] = json.loads(text)
        sampling = Sampling(**{**data, "stop": tuple(data.get("stop", ()))})
        numbers = [sampling.temperature, sampling.top_p, sampling.min_p]
        numbers.append(sampling.repetition_penalty)
        whole = isinstance(sampling.max_tokens, int) and isinstance(sampling.top_k, int)
        known = (
            whole
            and all(isinstance(n, int | float) and math.isfinite(n) for n in numbers)
            and 1 <= sampling.max_tokens <= MOST_NEW_TOKENS
            and sampling.temperature >= 0
            and 0 < sampling.top_p <= 1
            and sampling.top_k >= 0
            and 0 <= sampling.min_p <= 1
            and sampling.repetition_penalty > 0
            and all(isinstance(stop, str) and stop for stop in sampling.stop)
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        known, sampling = False, None
    if not known or sampling is None:
        raise BadBody("the header needs sampling settings")
    return sampling


def _check(order: Order, bounds: Bounds) -> None:
    for request in order.requests:
        longest = len(request.prompt_tokens) + order.sampling.max_tokens
        if bounds.positions is not None and longest - 1 > bounds.positions:
            raise TooLarge(
                f"a prompt of {len(request.prompt_tokens)} tokens and an answer of "
                f"{order.sampling.max_tokens}, and the model has {bounds.positions} places"
            )
        if not _in_vocabulary(request.prompt_tokens, bounds.vocab):
            raise BadBody(f"tokens must be from 0 to {bounds.vocab - 1}, the model's vocabulary")


def _in_vocabulary(tokens: Sequence[int], vocab: int) -> bool:
    return not tokens or 0 <= min(tokens) <= max(tokens) < vocab
