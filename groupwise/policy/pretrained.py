"""transformers' Auto classes, without the Python code that a model's folder may bring along."""

from typing import Any

import torch

from groupwise.errors import ModelError, shortened


def from_pretrained(auto: Any, source: Any, **options: Any) -> Any:
    """`auto.from_pretrained(source)`. A model that needs code of its own is refused.

    Left to itself transformers would ask on standard input whether to run that code.
    """
    try:
        return auto.from_pretrained(source, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ModelError(
            f"{source} needs Python code of its own to be loaded (auto_map in its config), and "
            "groupwise runs no code that comes with a model: use a model whose architecture "
            "transformers has"
        ) from None
    except (OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a folder may hold anything, and libraries raise what they like
        raise ModelError(f"{source} cannot be loaded: {described(error)}") from error


def described(error: Exception) -> str:
    """KeyError: 'x'; the first line of what a library says."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {shortened(first)}"
