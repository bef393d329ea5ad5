"""A server of ours from its start to its end: where it listens, for whom, and how it stops.

Every connection carries one request. SIGTERM and Ctrl-C stop the server gracefully: no new
requests, those at hand are answered, exit code 0.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from secrets import token_urlsafe
from types import FrameType
from typing import Any, ClassVar

from groupwise.errors import ConfigError, MissingExtraError

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from groupwise.remote.guard import is_strong_token
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "uvicorn", "serve") from error

log = logging.getLogger("groupwise")

Announce = Callable[[str, str | None], None]
"""announce(address, token) once it answers; the token only where it was made up here."""
GRACE_SECONDS = 30
HEAD_SECONDS = 10.0
"""For a request line with its headers to arrive."""
READ_SECONDS = 60.0
"""For a client to read what it was sent."""
MAX_SILENT = 256
"""Connections that may be open without a request: the oldest is closed for a new one."""


@dataclass(frozen=True)
class Listening:
    """Where and for whom. `queue`: requests that may wait.

    `until_eof`: also stop, at once, when standard input ends. A parent that holds the other end of
    it takes the server with it, however it dies.
    """

    host: str = "127.0.0.1"
    port: int = 8650
    token: str | None = None
    queue: int = 64
    until_eof: bool = False


class BoundedConnection(H11Protocol):
    """uvicorn's HTTP/1.1, which by itself waits for ever: for headers, and for a slow reader.

    A connection without a request costs nobody else a place (uvicorn's `limit_concurrency` counts
    it like any other, so that idle ones could shut everybody out).
    """

    silent: ClassVar[dict["BoundedConnection", None]] = {}
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.silent[self] = None
        self._close_in(HEAD_SECONDS)
        if len(self.silent) > MAX_SILENT:
            oldest = next(iter(self.silent))
            self.silent.pop(oldest)  # now, not when it is lost: of a burst, each closes another one
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self in self.silent and self.cycle is not None:
            self.silent.pop(self)
            self._close_in(None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._close_in(READ_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._close_in(None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._close_in(READ_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.silent.pop(self, None)
        self._close_in(None)

    def _close_in(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, self.transport.abort)


def server_for(app: Any) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        headers=[("connection", "close")],
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return uvicorn.Server(config)


def run_app(make: Callable[[str], Any], listening: Listening, announce: Announce) -> None:
    """Listen, `make(token)` the application, and answer until stopped."""
    given = None if listening.token is None else check_token(listening.token)
    token = given or token_urlsafe(24)
    if listening.until_eof:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    with _listen(listening.host, listening.port) as listens:
        server = server_for(make(token))
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
            server.run(sockets=[listens])
        except KeyboardInterrupt:
            return


def check_token(token: str) -> str:
    if not is_strong_token(token):
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
