"""huggingface_hub, and the libraries that fetch with it, kept to what is cached."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cache_only(only: bool) -> Iterator[None]:
    """Within it nothing is fetched, if `only`.

    The environment variable HF_HUB_OFFLINE is read when the library is imported; this is the
    constant that it is read into, which every request looks at.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or only
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
