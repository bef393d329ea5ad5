"""Prompts to tokens before sampling, tokens to text after it, and which tokens end an answer.

A conversation is rendered by the tokenizer's chat template. A base model has none: it gets the
contents of the turns, joined by blank lines, to continue. The prefill is tokenized by itself and
put behind the prompt, so a prompt has the same tokens with and without one.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from groupwise.compat.transformers import decode_together
from groupwise.errors import DataError, ModelError
from groupwise.policy.chat_template import render_chat
from groupwise.policy.tokenizing import encoded, panics_told, text_of, tokens_of
from groupwise.types import Problem

LARGEST = 2**31 - 1
"""Of token numbers."""


def prompt_tokens(problem: Problem, tokenizer: Any) -> tuple[int, ...]:
    """The tokens that the model continues: the rendered prompt, then the prefill."""
    return tokenize_prompts([problem], tokenizer)[0]


def fit_prompts(
    problems: Sequence[Problem], tokenizer: Any, max_tokens: int
) -> tuple[list[tuple[Problem, tuple[int, ...]]], int]:
    """(problem, tokens) of the prompts of at most `max_tokens`, and how many were left out."""
    pairs = list(zip(problems, tokenize_prompts(problems, tokenizer), strict=True))
    fitting = [(problem, tokens) for problem, tokens in pairs if len(tokens) <= max_tokens]
    if pairs and not fitting:
        shortest = min(len(tokens) for _, tokens in pairs)
        raise DataError(
            f"all {len(pairs)} prompts are longer than rollout.max_prompt_tokens={max_tokens}: "
            f"the shortest has {shortest} tokens. Set rollout.max_prompt_tokens={shortest} or more"
        )
    return fitting, len(pairs) - len(fitting)


def tokenize_prompts(problems: Sequence[Problem], tokenizer: Any) -> list[tuple[int, ...]]:
    """`prompt_tokens` of many problems, tokenized in two batches rather than one by one."""
    # A chat template writes its own special tokens; plain text gets the tokenizer's (BOS).
    templated = [tokenizer.chat_template and not isinstance(p.prompt, str) for p in problems]
    ids: dict[int, list[int]] = {}
    for by_template in (True, False):
        chosen = [i for i, flag in enumerate(templated) if bool(flag) == by_template]
        if chosen:
            texts = [_render(problems[i], tokenizer) for i in chosen]
            batch = encoded(tokenizer, texts, add_special_tokens=not by_template)["input_ids"]
            ids.update(zip(chosen, batch, strict=True))
    prefills = {
        text: tokens_of(tokenizer, text) if text else []
        for text in {problem.prefill for problem in problems}
    }
    tokens = [(*ids[i], *prefills[problem.prefill]) for i, problem in enumerate(problems)]
    for problem, prompt in zip(problems, tokens, strict=True):
        if not prompt:
            raise DataError(f"the prompt of problem {problem.id} has no tokens: it is empty")
    return tokens


def _render(problem: Problem, tokenizer: Any) -> str:
    if isinstance(problem.prompt, str):
        return problem.prompt
    if not tokenizer.chat_template:
        return "\n\n".join(turn["content"] for turn in problem.prompt)
    try:
        return render_chat(tokenizer, problem.prompt, add_generation_prompt=True)
    except ModelError as error:
        raise ModelError(f"problem {problem.id}: {error}") from error


def eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends an answer: the generation config's, the config's, the tokenizer's."""
    sources = (getattr(model, "generation_config", None), model.config, tokenizer)
    values = [getattr(source, "eos_token_id", None) for source in sources]
    ids = tuple(sorted({token for value in values for token in _as_list(value)}))
    if odd := [token for token in ids if abs(token) > LARGEST]:
        raise ModelError(f"eos_token_id={odd[0]} of the model is no token: it is far too large")
    return ids


def _as_list(value: int | Iterable[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


def decode(tokens: Sequence[int], tokenizer: Any, eos_ids: Sequence[int]) -> str:
    """The text of an answer, without special tokens and without the one that ended it.

    Some models end with a token that their tokenizer does not count as special.
    """
    return decode_all([tokens], tokenizer, eos_ids)[0]


def decode_all(
    answers: Sequence[Sequence[int]], tokenizer: Any, eos_ids: Sequence[int]
) -> list[str]:
    """The texts of several answers: on all cores, where the tokenizer can."""
    rows = [tokens[:-1] if tokens and tokens[-1] in eos_ids else tokens for tokens in answers]
    texts = panics_told(decode_together, tokenizer, rows) if len(rows) > 1 else None
    if texts is not None:
        return texts
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return [text_of(tokenizer, row, **options) for row in rows]
