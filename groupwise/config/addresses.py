"""What a server's address must look like, and which variables may hold its token."""

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator

OURS = "GROUPWISE_"
JUDGES = ("OPENAI_API_KEY",)
"""What may be sent to a judge besides."""


def check_server_url(url: str) -> None:
    """http://host:port, https too; a token goes into the environment, not into an address."""
    parts = urlsplit(url)
    try:
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        known = False
    if not known or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"urls must look like http://127.0.0.1:8650, not {url!r}")


def server_url(url: str) -> str:
    check_server_url(url)
    return url.rstrip("/")


def check_token_variable(name: str) -> str:
    """What it holds is sent to a server that the same recipe names: no other secret may be."""
    if not name.startswith(OURS):
        raise ValueError(
            f"must be a variable whose name begins with {OURS}, since it is sent to a server"
        )
    return name


def check_key_variable(name: Any) -> None:
    """The same for the judge's option `key_variable`."""
    if name not in JUDGES and not str(name).startswith(OURS):
        raise ValueError(
            f"key_variable must be {', '.join(JUDGES)} or a variable whose name begins with "
            f"{OURS}, since its value is sent to the judge, not {name!r}"
        )


TokenVariable = Annotated[str, AfterValidator(check_token_variable)]
