"""One of our servers, asked over HTTP: every way in which that fails, as one of three errors.

`Gone`: this server cannot do it now, another may. MemoryError: the question was too large for its
device, smaller ones may fit. ModelError: only a person can mend it.

Each question has a connection of its own: next to a forward pass that costs nothing, and no
connection is ever found to have been closed while it was idle.
"""

import os
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from groupwise.errors import ConfigError, ModelError

LONGEST_TEXT = 65536
LONGEST_WAIT = 10.0
"""Seconds that a server may ask us to wait before we ask again."""


class Gone(Exception):
    """A server that does not answer, or not with what it should; the message says why."""


class Busy(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"its queue is full for {seconds:g} s")
        self.seconds = seconds


@dataclass(frozen=True)
class Address:
    """Address("http://127.0.0.1:8650", token="...", token_env="GROUPWISE_TOKEN", timeout=60)

    `what` is what messages call it.
    """

    url: str
    token: str
    token_env: str
    timeout: float
    what: str = "reference server"

    def ask(self, method: str, path: str, body: bytes, most: int) -> bytes:
        """The reply, of at most so many bytes; waits while the server's queue is full."""
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                return self.request(method, path, body, most)
            except Busy as busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Gone(f"its queue was full for {self.timeout:g} s") from None
                time.sleep(min(busy.seconds, left))

    def request(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None,
        most: int,
        length: int | None = None,
    ) -> bytes:
        """One try. A body that comes in pieces says its whole `length`."""
        headers = {"Authorization": f"Bearer {self.token}"}
        if length is not None:
            headers["Content-Length"] = str(length)
        connection = self._connection()
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # its reply may say why
                connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read(most + 1)
        except (OSError, HTTPException) as error:
            raise Gone(_reason(error, self.timeout)) from error
        finally:
            connection.close()
        if response.status == 200:
            if len(content) > most:
                raise Gone("its reply is too long")
            return content
        raise self._failure(response, content)

    def _connection(self) -> HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None  # the config has checked it
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return HTTPSConnection(
                parts.hostname, parts.port, timeout=self.timeout, context=context
            )
        return HTTPConnection(parts.hostname, parts.port, timeout=self.timeout)

    def _failure(self, response: HTTPResponse, content: bytes) -> Exception:
        text = content[:300].decode("utf-8", "replace")
        said = "".join(c for c in text if c.isprintable()).strip()
        status = response.status
        if status == 401:
            return ModelError(
                f"the {self.what} {self.url} refuses the token: set {self.token_env} to the "
                "one that it was started with, or that it printed"
            )
        if status == 503:
            wait = response.getheader("retry-after") or "1"
            seconds = float(wait) if wait.isascii() and wait.isdigit() else 1.0
            return Busy(min(max(seconds, 0.1), LONGEST_WAIT))
        if status == 507:
            return MemoryError(f"{self.url}: {said}")
        if status in (409, 410) or status >= 500:
            return Gone(said if status < 500 else f"it failed with status {status}: {said}")
        return ModelError(f"the {self.what} {self.url} refused a request ({status}): {said}")


def token_in(variable: str, setting: str, command: str) -> str:
    """The servers' token from the environment."""
    token = os.environ.get(variable, "")
    if not (token.isascii() and token.isprintable() and token.strip()):
        raise ConfigError(
            f"{setting} needs the servers' token in the environment: "
            f"export {variable}=..., as `{command}` printed it"
        )
    return token.strip()


def _reason(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no reply within {timeout:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
