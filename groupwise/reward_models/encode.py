"""Prompts and answers as the token rows that a reward model reads.

A tokenizer with a chat template gets the conversation with the answer as the assistant's turn: so
are decoder reward models trained. One without gets its own form of a pair, [CLS] prompt [SEP]
answer [SEP]. A comparison is ours alone: [CLS] prompt [SEP] answer A [SEP] answer B [SEP].

What is too long is cut in the middle: the start of the prompt and the end of each answer stay,
since the question is asked first and the result is given last. The prompt gets at least a quarter
of the room. Special tokens that are spelled out in a text become spaces, so that an answer cannot
end its own segment and write another one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.errors import ModelError
from groupwise.policy.chat_template import render_chat
from groupwise.policy.tokenizing import encoded

PROMPT_SHARE = 4
"""A prompt that is cut keeps at least max_tokens / PROMPT_SHARE tokens."""

CHARACTERS_PER_TOKEN = 20
"""Of a text beyond so many times max_tokens only the kept end is tokenized at all."""


@dataclass(frozen=True)
class EncodedRow:
    """EncodedRow(tokens=(1, 52, 2, 77, 2), types=(0, 0, 0, 1, 1)): types are BERT's token_type_ids.

    The tokenizer's own where it gives any, else 0; in a comparison 1 for the second answer.
    """

    tokens: tuple[int, ...]
    types: tuple[int, ...]


def answer_rows(
    prompts: Sequence[Any], answers: Sequence[str], tokenizer: Any, max_tokens: int
) -> list[EncodedRow]:
    """One row for each answer to its prompt (text or messages)."""
    special = _special_pattern(tokenizer)
    room = CHARACTERS_PER_TOKEN * max_tokens
    texts = [special.sub(" ", answer[-room:]) for answer in answers]
    if not texts:
        return []
    if not tokenizer.chat_template:
        asked = [special.sub(" ", as_text(prompt)[:room]) for prompt in prompts]
        return _pair_rows(asked, texts, tokenizer, max_tokens)
    cleaned = [_clean_turns(prompt, special, room) for prompt in prompts]
    rendered = [
        _rendered(turns, text, tokenizer) for turns, text in zip(cleaned, texts, strict=True)
    ]
    asked = _token_lists([prompt for prompt, _ in rendered], tokenizer)
    given = _token_lists([answer for _, answer in rendered], tokenizer)
    rows = []
    for prompt, answer in zip(asked, given, strict=True):
        kept = _kept_prompt(len(prompt), len(answer), max_tokens)
        tail = answer[len(answer) - min(len(answer), max_tokens - kept) :]
        rows.append(EncodedRow((*prompt[:kept], *tail), (0,) * (kept + len(tail))))
    return rows


def comparison_rows(
    prompts: Sequence[Any],
    firsts: Sequence[str],
    seconds: Sequence[str],
    tokenizer: Any,
    max_tokens: int,
) -> list[EncodedRow]:
    """One row for each pair of answers to a prompt."""
    special = _special_pattern(tokenizer)
    room = CHARACTERS_PER_TOKEN * max_tokens
    start, separator = _frame(tokenizer)
    parts = [
        _token_lists([special.sub(" ", text) for text in texts], tokenizer)
        for texts in (
            [as_text(prompt)[:room] for prompt in prompts],
            [text[-room:] for text in firsts],
            [text[-room:] for text in seconds],
        )
    ]
    free = max_tokens - len(start) - 3
    rows = []
    for prompt, first, second in zip(*parts, strict=True):
        kept = _kept_prompt(len(prompt), len(first) + len(second), free)
        a, b = _share(len(first), len(second), free - kept)
        before = (*start, *prompt[:kept], separator, *first[len(first) - a :], separator)
        after = (*second[len(second) - b :], separator)
        rows.append(EncodedRow((*before, *after), (0,) * len(before) + (1,) * len(after)))
    return rows


def as_text(prompt: Any) -> str:
    """A prompt as plain text: that of its turns, a blank line between them."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(str(turn["content"]) for turn in prompt)


def as_answer(completion: Any) -> str:
    """An answer's text, whether it comes as text or as TRL's list of one message."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def padded(
    rows: Sequence[EncodedRow], pad_id: int, device: torch.device | str
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T) tokens, attention mask and token types, padded on the right."""
    width = max(1, max(len(row.tokens) for row in rows))
    tokens = torch.full((len(rows), width), pad_id)
    mask, types = torch.zeros_like(tokens), torch.zeros_like(tokens)
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = torch.tensor(row.tokens, dtype=torch.long)
        types[index, : len(row.types)] = torch.tensor(row.types, dtype=torch.long)
        mask[index, : max(1, len(row.tokens))] = 1
    return tokens.to(device), mask.to(device), types.to(device)


def _pair_rows(
    prompts: Sequence[str], answers: Sequence[str], tokenizer: Any, max_tokens: int
) -> list[EncodedRow]:
    """The tokenizer's own form of a pair, with what is too much taken out of its middle."""
    options = {"truncation": False, "padding": False, "verbose": False}
    pairs = encoded(tokenizer, list(prompts), list(answers), **options)
    all_types = pairs.get("token_type_ids")
    rows = []
    for index, tokens in enumerate(pairs["input_ids"]):
        parts = pairs.sequence_ids(index)
        asked = [at for at, part in enumerate(parts) if part == 0]
        given = [at for at, part in enumerate(parts) if part == 1]
        free = max_tokens - (len(tokens) - len(asked) - len(given))
        kept = _kept_prompt(len(asked), len(given), free)
        tail = max(0, free - kept)
        dropped = {*asked[kept:], *given[: max(0, len(given) - tail)]}
        chosen = [at for at in range(len(tokens)) if at not in dropped]
        types = all_types[index] if all_types else [0] * len(tokens)
        rows.append(
            EncodedRow(tuple(tokens[at] for at in chosen), tuple(types[at] for at in chosen))
        )
    return rows


def _kept_prompt(asked: int, given: int, room: int) -> int:
    """How many tokens of a prompt stay: all, or what the answers leave, or its share."""
    return max(0, min(asked, max(room // PROMPT_SHARE, room - given), room))


def _share(first: int, second: int, room: int) -> tuple[int, int]:
    """Tokens of two answers: a short one leaves its rest to the other."""
    a = min(first, max(room // 2, room - second))
    return a, max(0, min(second, room - a))


def _token_lists(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    if not texts:
        return []
    options = {"add_special_tokens": False, "padding": False, "verbose": False}
    return encoded(tokenizer, list(texts), **options)["input_ids"]


def _frame(tokenizer: Any) -> tuple[tuple[int, ...], int]:
    """The tokens that open a comparison, and the one that ends each of its parts."""
    first = [tokenizer.cls_token_id, tokenizer.bos_token_id]
    last = [tokenizer.sep_token_id, tokenizer.eos_token_id]
    start = next((token for token in first if token is not None), None)
    separator = next((token for token in (*last, start) if token is not None), None)
    if separator is None:
        raise ModelError(
            "the tokenizer has no separator, end or start token to put between two answers; "
            "use another base model for a preference model"
        )
    return (() if start is None else (start,)), separator


def _clean_turns(prompt: Any, special: re.Pattern[str], room: int) -> list[dict[str, str]]:
    turns: Sequence[Mapping[str, Any]] = (
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    )
    return [
        {"role": str(turn["role"]), "content": special.sub(" ", str(turn["content"])[:room])}
        for turn in turns
    ]


def _rendered(turns: list[dict[str, str]], answer: str, tokenizer: Any) -> tuple[str, str]:
    """The conversation up to the answer, and the answer with what the template puts after it."""
    try:
        whole = render_chat(tokenizer, [*turns, {"role": "assistant", "content": answer}])
        before = render_chat(tokenizer, turns, add_generation_prompt=True)
    except ModelError as error:
        raise ModelError(f"reward model: {error}") from error
    # A template that writes more before an answer than it asks for has no clean boundary.
    return (before, whole[len(before) :]) if whole.startswith(before) else ("", whole)


def _special_pattern(tokenizer: Any) -> re.Pattern[str]:
    tokens = sorted({str(token) for token in tokenizer.all_special_tokens}, key=len, reverse=True)
    return re.compile("|".join(re.escape(token) for token in tokens) or r"(?!)")
