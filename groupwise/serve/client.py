"""One reference server, asked over HTTP: every way in which that fails, as one of three errors.

`Gone`: this server cannot do it now, another may. MemoryError: the question was too large for its
device, smaller ones may fit. ModelError: only a person can mend it.

Each question has a connection of its own: next to a forward pass that costs nothing, and no
connection is ever found to have been closed while it was idle.
"""

import json
import ssl
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from groupwise.errors import ModelError
from groupwise.policy.scoring import Logps
from groupwise.serve.identity import Identity, from_json
from groupwise.serve.wire import (
    BadBody,
    Question,
    decode_answer,
    encode_question,
    longest_answer,
)

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
class Offer:
    """What a server has: its model, and how many tokens it takes at once."""

    model: Identity
    tokens: int


@dataclass(frozen=True)
class Server:
    """Server("http://127.0.0.1:8650", token="...", token_env="GROUPWISE_TOKEN", timeout=60)"""

    url: str
    token: str
    token_env: str
    timeout: float

    def offer(self) -> Offer:
        text = self._request("GET", "/model", None, LONGEST_TEXT)
        try:
            data = json.loads(text)
            tokens = data["tokens"]
            if not isinstance(tokens, int) or tokens < 1:
                raise ValueError("it does not say how many tokens it takes")
            return Offer(from_json(data), tokens)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelError(
                f"{self.url} answers, but not as a reference server of this version does "
                f"({error}); start it with `groupwise serve reference MODEL`"
            ) from error

    def ask(self, question: Question, model: str) -> Logps:
        """Log-probs by (group, answer), from the model of this name and no other."""
        body, most = encode_question(question), longest_answer(question)
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                reply = self._request("POST", "/logps", body, most)
                break
            except Busy as busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Gone(f"its queue was full for {self.timeout:g} s") from None
                time.sleep(min(busy.seconds, left))
        try:
            logps, name = decode_answer(reply, question)
        except BadBody as error:
            raise Gone(str(error)) from error
        if name != model:
            raise Gone("it was started again with another model")
        return logps

    def _request(self, method: str, path: str, body: bytes | None, most: int) -> bytes:
        connection = self._connection()
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {self.token}"})
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
                f"the reference server {self.url} refuses the token: set {self.token_env} to the "
                "one that it was started with, or that it printed"
            )
        if status == 503:
            wait = response.getheader("retry-after") or "1"
            seconds = float(wait) if wait.isascii() and wait.isdigit() else 1.0
            return Busy(min(max(seconds, 0.1), LONGEST_WAIT))
        if status == 507:
            return MemoryError(f"{self.url}: {said}")
        if status >= 500:
            return Gone(f"it failed with status {status}: {said}")
        return ModelError(f"the reference server {self.url} refused a request ({status}): {said}")


def _reason(error: Exception, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no reply within {timeout:g} s"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
