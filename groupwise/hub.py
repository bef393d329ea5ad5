"""Is the Hugging Face hub there? Asked once a process, and shortly.

Without a network the libraries that fetch from it would try every file of a model or a dataset
several times, half a minute for each. Where it does not answer, what is cached is used at once.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from groupwise.compat.huggingface_hub import cache_only

HUB_SECONDS = 3.0


@dataclass(frozen=True)
class HubAnswer:
    """HubAnswer(True, "https://huggingface.co answers")"""

    online: bool
    text: str


def ask_hub() -> HubAnswer:
    """Whether it can be reached from here, and why not. An error page is an answer too."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return HubAnswer(False, "HF_HUB_OFFLINE is set")
    return _asked(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")


@functools.cache
def _asked(address: str) -> HubAnswer:
    if not address.startswith(("https://", "http://")):
        return HubAnswer(False, f"HF_ENDPOINT={address} must start with https://")
    try:
        with urlopen(Request(address, method="HEAD"), timeout=HUB_SECONDS):
            return HubAnswer(True, f"{address} answers")
    except HTTPError as error:
        return HubAnswer(True, f"{address} answers with an error ({error.code} {error.reason})")
    except (OSError, ValueError) as error:
        return HubAnswer(False, f"{address} cannot be reached ({error})")


@contextmanager
def hub_or_cache() -> Iterator[None]:
    """Within it, what fetches from the hub looks at its cache alone where the hub is not there."""
    with cache_only(not ask_hub().online):
        yield
