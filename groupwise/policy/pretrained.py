"""transformers' Auto classes, without the Python code that a model's folder may bring along.

The hub is asked once whether it answers, and shortly: without a network transformers would try
every file of a model several times. A folder is read without asking.
"""

import functools
import importlib.util
import os
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from transformers import AutoTokenizer

from groupwise.errors import MissingExtraError, ModelError, shortened

HUB_SECONDS = 5.0


def from_pretrained(auto: Any, source: Any, **options: Any) -> Any:
    """`auto.from_pretrained(source)`. A model that needs code of its own is refused.

    Left to itself transformers would ask on standard input whether to run that code.
    """
    if os.path.isdir(source) or not hub_answers():
        options["local_files_only"] = True
    try:
        return auto.from_pretrained(source, trust_remote_code=False, **options)
    except (ValueError, ImportError) as error:
        if auto is AutoTokenizer and _lacks_sentencepiece(error):
            raise MissingExtraError("sentencepiece", "sentencepiece") from error
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{source} needs Python code of its own to be loaded (auto_map in its config), and "
                "groupwise runs no code that comes with a model: use a model whose architecture "
                "transformers has"
            ) from None
        if isinstance(error, ValueError):
            raise
        raise ModelError(f"{source} cannot be loaded: {described(error)}") from error
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a folder may hold anything, and libraries raise what they like
        raise ModelError(f"{source} cannot be loaded: {described(error)}") from error


def described(error: Exception) -> str:
    """KeyError: 'x'; the first line of what a library says."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {shortened(first)}"


@functools.cache
def hub_answers() -> bool:
    """Whether it can be reached from here; any answer will do."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        with urlopen(Request(address, method="HEAD"), timeout=HUB_SECONDS):
            return True
    except HTTPError:
        return True
    except (OSError, ValueError):
        return False


def _lacks_sentencepiece(error: Exception) -> bool:
    """transformers then tries to read SentencePiece's file as tiktoken's, and fails on that."""
    named = any(name in str(error).lower() for name in (".model", "sentencepiece", "tiktoken"))
    return named and importlib.util.find_spec("sentencepiece") is None
