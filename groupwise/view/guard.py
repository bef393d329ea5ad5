"""Who may ask: a token, a known host name, and only to read. Wraps the application.

The token comes once in the address that is printed, then moves into a cookie, so that it stays in
no history and no referrer. A name that is not ours in the Host header is a page elsewhere that
points its own domain at this machine (DNS rebinding): refused before anything else.
"""

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

Headers = Mapping[bytes, bytes]

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
REFUSED = {
    400: "Unknown host name. Open the address that groupwise view printed.",
    403: "Open the address that groupwise view printed: it carries the token.",
    405: "This page only reads.",
}


class Guard:
    """An ASGI application around another: `Guard(app, token, ["localhost"], cookie)`"""

    def __init__(self, app: Any, token: str, names: Iterable[str], cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        given = query.pop("token", None)
        refusal = self._refusal(scope["method"], headers, given)
        if refusal is not None:
            await _reply(send, refusal, REFUSED[refusal])
        elif given is not None:
            rest = f"?{urlencode(query)}" if query else ""
            cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Lax"
            # The path alone, with one slash: never an address of another host.
            location = "/" + scope["path"].lstrip("/\\") + rest
            await _reply(send, 303, "", {"location": location, "set-cookie": cookie})
        else:
            await self._app(scope, receive, _with_headers(send))

    def _refusal(self, method: str, headers: Headers, given: str | None) -> int | None:
        """The status to refuse with, or None."""
        if not is_known_host(headers.get(b"host", b"").decode("latin-1"), self._names):
            return 400
        if method not in ("GET", "HEAD"):
            return 405
        if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") and (
            headers.get(b"sec-fetch-mode") != b"navigate"
        ):
            return 403
        shown = given if given is not None else _cookie(headers, self._cookie)
        is_ours = hmac.compare_digest(shown.encode("utf-8", "replace"), self._token.encode())
        return None if is_ours else 403


def is_known_host(header: str, names: Iterable[str]) -> bool:
    """Names of this machine, with any port (it may be forwarded); any address in numbers.

    A number cannot be pointed elsewhere, so it cannot be another site in disguise.
    """
    name = header.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") <= 1:
        name = name.partition(":")[0]
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1")).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _with_headers(send: Any) -> Any:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_encoded(HEADERS)]
        await send(message)

    return sending


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]


async def _reply(send: Any, status: int, text: str, more: Mapping[str, str] | None = None) -> None:
    headers = {"content-type": "text/plain; charset=utf-8", **HEADERS, **(more or {})}
    start = {"type": "http.response.start", "status": status, "headers": _encoded(headers)}
    await send(start)
    await send({"type": "http.response.body", "body": (text + "\n").encode()})
