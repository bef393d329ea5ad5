"""The calls of a tokenizer: text to tokens, tokens to text.

tokenizers is in Rust. Where the settings in a model's folder are ones that it breaks on, it panics:
that is no Exception, so that nothing which handles errors would see it. Here it becomes one.
"""

from collections.abc import Callable, Sequence
from typing import Any

from groupwise.errors import ModelError, is_panic, shortened


def encoded(tokenizer: Any, *texts: Any, **options: Any) -> Any:
    """What the tokenizer makes of the texts: {"input_ids": [...], ...}. Raises ModelError."""
    return panics_told(tokenizer, *texts, **options)


def tokens_of(tokenizer: Any, text: str) -> list[int]:
    """Of a text that already has its special tokens."""
    return encoded(tokenizer, text, add_special_tokens=False)["input_ids"]


def text_of(tokenizer: Any, tokens: Sequence[int], **options: Any) -> str:
    """The text of tokens. Raises ModelError."""
    return panics_told(tokenizer.decode, list(tokens), **options)


def panics_told(call: Callable[..., Any], *values: Any, **options: Any) -> Any:
    """`call(*values, **options)`, where a panic is a ModelError."""
    try:
        return call(*values, **options)
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ModelError(f"the model's tokenizer cannot be used: {shortened(str(error))}") from None
