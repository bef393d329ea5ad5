"""Who may ask: a token, a known host name, and only to read. Wraps the application.

The token comes once in the address that is printed, then moves into a cookie, so that it stays in
no history and no referrer. A name that is not ours in the Host header is a page elsewhere that
points its own domain at this machine (DNS rebinding): refused before anything else.
"""

import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

    def __init__(self, app: ASGIApp, token: str, names: Iterable[str], cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer = self._answer(Request(scope)) or self._app
            await answer(scope, receive, _with_headers(send))

    def _answer(self, request: Request) -> Response | None:
        """A refusal, or where to go on with the token as a cookie; None: the application's turn."""
        status = self._refusal(request)
        if status is not None:
            return PlainTextResponse(f"{REFUSED[status]}\n", status)
        if "token" not in request.query_params:
            return None
        query = [(k, v) for k, v in request.query_params.multi_items() if k != "token"]
        # The path alone, with one slash: never an address of another host.
        location = "/" + request.scope["path"].lstrip("/\\") + "?" * bool(query) + urlencode(query)
        cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Lax"
        return RedirectResponse(location, 303, {"set-cookie": cookie})

    def _refusal(self, request: Request) -> int | None:
        """The status to refuse with, or None."""
        headers = request.headers
        if not is_known_host(headers.get("host", ""), self._names):
            return 400
        if request.method not in ("GET", "HEAD"):
            return 405
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return 403
        shown = request.query_params.get("token", request.cookies.get(self._cookie, ""))
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


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
