"""transformers' Auto classes, without the Python code that a model's folder may bring along.

A folder is read without asking the hub.
"""

import importlib.util
import os
from contextlib import nullcontext
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedConfig

from groupwise.errors import MissingExtraError, ModelError, is_panic, shortened
from groupwise.hub import hub_or_cache
from groupwise.policy.folder_limits import check_settings, check_tokenizer


def from_pretrained(auto: Any, source: Any, **options: Any) -> Any:
    """`auto.from_pretrained(source)`. A model that needs code of its own is refused.

    Left to itself transformers would ask on standard input whether to run that code.
    """
    if os.path.isdir(source):
        options["local_files_only"] = True
    try:
        # Not only `local_files_only`: transformers looks for an adapter of the same name anyway.
        with nullcontext() if "local_files_only" in options else hub_or_cache():
            check_settings(source, _settings(source, options))
            made = auto.from_pretrained(source, trust_remote_code=False, **options)
        if auto is AutoTokenizer:
            check_tokenizer(source, made)
            made.decode(made("1")["input_ids"])  # some of its settings are looked at only now
        return made
    except ModelError:
        raise
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
    except BaseException as error:
        if not is_panic(error):
            raise
        raise ModelError(f"{source} cannot be loaded: {described(error)}") from None


_WHERE = ("cache_dir", "local_files_only", "revision", "subfolder", "token")


def _settings(source: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Its config.json; empty where there is none, which the call that needs one says."""
    if "gguf_file" in options:
        return {}
    try:
        where = {name: options[name] for name in _WHERE if name in options}
        return PreTrainedConfig.get_config_dict(source, **where)[0]
    except Exception:
        return {}


def described(error: BaseException) -> str:
    """KeyError: 'x'; the first line of what a library says."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {shortened(first)}"


def _lacks_sentencepiece(error: Exception) -> bool:
    """transformers then tries to read SentencePiece's file as tiktoken's, and fails on that."""
    named = any(name in str(error).lower() for name in (".model", "sentencepiece", "tiktoken"))
    return named and importlib.util.find_spec("sentencepiece") is None
