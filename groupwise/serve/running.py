"""A server of ours from its start to its end: where it listens, for whom, and how it stops.

SIGTERM and Ctrl-C stop it gracefully: no new questions, those at hand are answered, exit code 0.
"""

import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from secrets import token_urlsafe
from types import FrameType
from typing import Any

from groupwise.errors import ConfigError, MissingExtraError

log = logging.getLogger("groupwise")

Announce = Callable[[str, str | None], None]
"""announce(address, token) once it answers; the token only where it was made up here."""
GRACE_SECONDS = 30
SPARE_CONNECTIONS = 32
"""Beside those whose questions wait: for health checks, and bodies on their way."""


@dataclass(frozen=True)
class Listening:
    """Where and for whom. `queue`: questions that may wait.

    `until_eof`: also stop, at once, when standard input ends. A parent that holds the other end of
    it takes the server with it, however it dies.
    """

    host: str = "127.0.0.1"
    port: int = 8650
    token: str | None = None
    queue: int = 64
    until_eof: bool = False


def with_server_packages() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "starlette", "serve") from error


def run_app(make: Callable[[str], Any], listening: Listening, announce: Announce) -> None:
    """Listen, `make(token)` the application, and answer until stopped."""
    import uvicorn

    given = None if listening.token is None else check_token(listening.token)
    token = given or token_urlsafe(24)
    if listening.until_eof:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    with _listen(listening.host, listening.port) as listens:
        config = uvicorn.Config(
            make(token),
            log_level="warning",
            access_log=False,
            ws="none",
            server_header=False,
            limit_concurrency=listening.queue + SPARE_CONNECTIONS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        if not is_loopback(listening.host):
            log.warning(
                "%s can be reached from other machines, and tokens travel unencrypted: use it in a "
                "network that you trust, or keep 127.0.0.1 and forward the port with ssh -L",
                listening.host,
            )
        host = f"[{listening.host}]" if ":" in listening.host else listening.host
        announce(f"http://{host}:{listens.getsockname()[1]}", None if given else token)
        signal.signal(signal.SIGTERM, _leave)
        try:
            uvicorn.Server(config).run(sockets=[listens])
        except KeyboardInterrupt:
            return


def check_token(token: str) -> str:
    """It travels in a header, and guessing it must be hopeless."""
    if not re.fullmatch(r"[\x21-\x7e]{16,512}", token):
        raise ConfigError(
            "a token has 16 characters or more, ASCII and no spaces; leave it out for a random one"
        )
    return token


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot listen on {host} port {port}: {reason}; give --port another (0: any free one)"
        ) from error


def _leave(number: int, frame: FrameType | None) -> None:
    """uvicorn raises the signal again after it has shut down; that is then no reason to die."""
    raise KeyboardInterrupt


def _end_with_stdin() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)  # nobody is left to answer, and a forward pass under way cannot be interrupted
