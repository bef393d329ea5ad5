"""What an address of a server must look like."""

from urllib.parse import urlsplit


def check_server_url(url: str) -> None:
    """http://host:port, https too; a token goes into the environment, not into an address."""
    parts = urlsplit(url)
    try:
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        known = False
    if not known or parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f"urls must look like http://127.0.0.1:8650, not {url!r}")
