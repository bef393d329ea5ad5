"""transformers' Auto classes, without the Python code that a model's folder may bring along."""

from typing import Any

from groupwise.errors import ModelError


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
