"""transformers' Auto classes, without the Python code that a model's folder may bring along."""

import importlib.util
from typing import Any

from transformers import AutoTokenizer

from groupwise.errors import MissingExtraError, ModelError


def from_pretrained(auto: Any, source: Any, **options: Any) -> Any:
    """`auto.from_pretrained(source)`. A model that needs code of its own is refused.

    Left to itself transformers would ask on standard input whether to run that code.
    """
    try:
        return auto.from_pretrained(source, trust_remote_code=False, **options)
    except (ValueError, ImportError) as error:
        if auto is AutoTokenizer and _lacks_sentencepiece(error):
            raise MissingExtraError("sentencepiece", "sentencepiece") from error
        if "trust_remote_code" not in str(error):
            raise
        raise ModelError(
            f"{source} needs Python code of its own to be loaded (auto_map in its config), and "
            "groupwise runs no code that comes with a model: use a model whose architecture "
            "transformers has"
        ) from None


def _lacks_sentencepiece(error: Exception) -> bool:
    """transformers then tries to read SentencePiece's file as tiktoken's, and fails on that."""
    named = any(name in str(error).lower() for name in (".model", "sentencepiece", "tiktoken"))
    return named and importlib.util.find_spec("sentencepiece") is None
