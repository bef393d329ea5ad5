"""What travels between a trainer and a reference server: safetensors bytes, no pickle.

A question holds whole groups rather than rows, so a prompt travels once and is computed once:

    tokens        int32, every group's prompt, then its answers, end to end
    lengths       int32, how long each of those is
    answers       int32, how many answers each group has
    temperatures  float32, of each answer; only where they were drawn at their own

with `temperature`, `layout` and `exact` as text in the header. The answer is `logprobs`, float32,
one for each token of the answers, in order. What comes is checked before it is used: names, types,
shapes, lengths that add up, tokens inside the vocabulary, sizes inside the limits.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from groupwise.serve.scored import Logps, Scored
from groupwise.types import Completion, Group, Problem

LONGEST_HEADER = 4096
"""Bytes: a header of ours has a few hundred."""
LAYOUTS = ("shared_prefix", "padded")


class BadBody(Exception):
    """Bytes that are no question or answer of ours; the message says why."""


class TooLarge(BadBody):
    """More than the server takes at once."""


@dataclass(frozen=True)
class Limits:
    """What a server takes: `tokens` on the rows of one question, and the model's own bounds."""

    tokens: int
    vocab: int
    positions: int | None

    @property
    def body(self) -> int:
        """Bytes. Tokens, lengths and temperatures have 4 each, and no more of them than tokens."""
        return 16 * self.tokens + 2 * LONGEST_HEADER


@dataclass(frozen=True)
class Question:
    """Groups to be scored. `exact`: in a forward pass of their own, for bit-equal numbers."""

    groups: tuple[Group, ...]
    temperature: float
    layout: str
    exact: bool

    @property
    def tokens(self) -> int:
        """On the rows that the model reads."""
        return row_tokens(self.groups, self.layout)


def row_tokens(groups: Sequence[Group], layout: str) -> int:
    rows = [
        (len(group.prompt_tokens), [max(len(c.tokens) - 1, 0) for c in group.completions])
        for group in groups
    ]
    if layout == "padded":
        longest = max((prompt + max(answers) for prompt, answers in rows), default=0)
        return longest * sum(len(answers) for _, answers in rows)
    return sum(prompt + sum(answers) for prompt, answers in rows)


def encode_question(question: Question) -> bytes:
    stretches: list[tuple[int, ...]] = []
    for group in question.groups:
        stretches += [group.prompt_tokens, *(c.tokens for c in group.completions)]
    completions = [c for group in question.groups for c in group.completions]
    tensors = {
        "tokens": int32([token for stretch in stretches for token in stretch]),
        "lengths": int32([len(stretch) for stretch in stretches]),
        "answers": int32([len(group.completions) for group in question.groups]),
    }
    heats = [c.temperature for c in completions if c.temperature is not None]
    if len(heats) == len(completions):
        tensors["temperatures"] = torch.tensor(heats, dtype=torch.float32)
    header = {
        "temperature": repr(float(question.temperature)),
        "layout": question.layout,
        "exact": "yes" if question.exact else "no",
    }
    return save(tensors, header)


def decode_question(body: bytes, limits: Limits) -> Question:
    """The question in a request's body; raises BadBody for anything else."""
    if len(body) > limits.body:
        raise TooLarge(f"a body may have {limits.body} bytes, this one has {len(body)}")
    tensors, header = decode_tensors(body)
    heats = tensors.pop("temperatures", None)
    if sorted(tensors) != ["answers", "lengths", "tokens"]:
        raise BadBody("a question holds the tensors tokens, lengths, answers and no others")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.int32 or tensor.ndim != 1:
            raise BadBody(f"{name} must be one row of int32")
    layout, exact = header.get("layout"), header.get("exact")
    if layout not in LAYOUTS or exact not in ("yes", "no"):
        raise BadBody("the header needs layout (shared_prefix or padded) and exact (yes or no)")
    question = Question(
        _groups(
            tensors["tokens"].tolist(),
            tensors["lengths"].tolist(),
            tensors["answers"].tolist(),
            heats,
        ),
        _temperature(header.get("temperature", "")),
        layout,
        exact == "yes",
    )
    _check(question, limits)
    return question


def encode_answer(question: Question, scored: Scored, model: str) -> bytes:
    logprobs = [logprob for place in _places(question.groups) for logprob in scored[place][0]]
    return save({"logprobs": torch.tensor(logprobs, dtype=torch.float32)}, {"model": model})


def decode_answer(body: bytes, question: Question) -> tuple[Logps, str]:
    """Log-probs by (group, answer), and which model gave them; raises BadBody for anything else."""
    tensors, header = decode_tensors(body)
    groups, logprobs = question.groups, tensors.get("logprobs")
    places = {(g, a): len(groups[g].completions[a].tokens) for g, a in _places(groups)}
    expected = sum(places.values())
    if logprobs is None or logprobs.dtype != torch.float32 or logprobs.shape != (expected,):
        raise BadBody(f"the reply is not {expected} log-probs")
    if not torch.isfinite(logprobs).all():
        raise BadBody("the reply holds log-probs that are not finite")
    parts = zip(places, logprobs.split(list(places.values())), strict=True)
    return {place: part.tolist() for place, part in parts}, header.get("model", "")


def longest_answer(question: Question) -> int:
    """Bytes that the answer to a question may have."""
    tokens = sum(len(c.tokens) for group in question.groups for c in group.completions)
    return 4 * tokens + 2 * LONGEST_HEADER


def _places(groups: Sequence[Group]) -> list[tuple[int, int]]:
    return [(g, a) for g, group in enumerate(groups) for a in range(len(group.completions))]


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def decode_tensors(body: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and text of a body with a short header; raises BadBody for anything else."""
    size = int.from_bytes(body[:8], "little")
    if len(body) < 8 or size > min(LONGEST_HEADER, len(body) - 8):
        raise BadBody("the body is no safetensors file")
    try:
        tensors = load(body)
        found = json.loads(body[8 : 8 + size]).get("__metadata__", {})
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadBody(f"the body is no safetensors file: {reason[:200]}") from None
    return tensors, found


def _groups(
    tokens: list[int], lengths: list[int], answers: list[int], heats: Tensor | None
) -> tuple[Group, ...]:
    if not answers or min(answers) < 1 or sum(answers) + len(answers) != len(lengths):
        raise BadBody("a group has an answer or more; lengths are of its prompt and of each")
    if min(lengths) < 0 or sum(lengths) != len(tokens):
        raise BadBody("lengths must add up to the tokens")
    if heats is not None:
        row = heats.dtype == torch.float32 and heats.shape == (sum(answers),)
        if not row or not torch.isfinite(heats).all() or heats.min() <= 0:
            raise BadBody("temperatures must be float32 above 0, one for each answer")
    temperatures = iter([None] * sum(answers) if heats is None else heats.tolist())
    at, sizes = 0, iter(lengths)

    def take() -> tuple[int, ...]:
        nonlocal at
        size = next(sizes)
        at += size
        return tuple(tokens[at - size : at])

    groups: list[Group] = []
    for count in answers:
        prompt = take()
        if not prompt:
            raise BadBody("a prompt needs one token or more")
        completions = []
        for _ in range(count):
            own = take()
            temperature = next(temperatures)
            completions.append(Completion(own, (0.0,) * len(own), "eos", temperature=temperature))
        groups.append(Group(Problem("", ""), prompt, tuple(completions)))
    return tuple(groups)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise BadBody("the header needs a temperature above 0")
    return value


def _check(question: Question, limits: Limits) -> None:
    if question.tokens > limits.tokens:
        raise TooLarge(
            f"{question.tokens} tokens at once, and this server takes {limits.tokens}: "
            "start it with --tokens, or lower batch.tokens_per_microbatch"
        )
    for group in question.groups:
        longest = len(group.prompt_tokens) + max(len(c.tokens) for c in group.completions) - 1
        if limits.positions is not None and longest > limits.positions:
            raise TooLarge(
                f"a row of {longest} tokens, and the model has {limits.positions} places"
            )
        for stretch in (group.prompt_tokens, *(c.tokens for c in group.completions)):
            if stretch and not 0 <= min(stretch) <= max(stretch) < limits.vocab:
                raise BadBody(
                    f"tokens must be from 0 to {limits.vocab - 1}, the model's vocabulary"
                )
