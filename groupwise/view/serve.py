"""Serve the viewer from this process until it is stopped."""

import errno
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from secrets import token_urlsafe

from groupwise.errors import ConfigError
from groupwise.remote.running import is_loopback, server_for
from groupwise.view.catalog import Catalog
from groupwise.view.server import Viewer, build_app

USUAL_PORT = 8642
TOKEN_VARIABLE = "GROUPWISE_VIEW_TOKEN"
NAME_VARIABLE = "GROUPWISE_VIEW_NAME"
TOKEN = re.compile(r"[A-Za-z0-9_-]{24,200}", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9._-]{1,253}", re.ASCII)


def serve(
    paths: Sequence[Path], host: str, port: int | None, announce: Callable[[str], None]
) -> None:
    """Serve the runs; `announce` is given the address once it answers. Returns when stopped."""
    viewer = Viewer(Catalog(paths))
    token = _token()
    listening = _listen(host, port)
    number = listening.getsockname()[1]
    # Cookies do not know ports: two viewers on one machine need two names.
    app = build_app(viewer, token, host_names(host), f"groupwise-view-{number}")
    if not is_loopback(host):
        print(
            f"{host} can be reached from other machines, and what is shown travels unencrypted. "
            "Safer: keep 127.0.0.1 and forward the port with ssh -L",
            file=sys.stderr,
        )
    announce(f"http://{_address_of(host)}:{number}/?token={token}")
    threading.Thread(target=viewer.warm, daemon=True).start()
    try:
        server_for(app).run(sockets=[listening])  # no access log: addresses hold the token
    except KeyboardInterrupt:
        return


def _token() -> str:
    """A new one each time, or the one in the environment, with which links last."""
    kept = os.environ.get(TOKEN_VARIABLE, "")
    if kept and not TOKEN.fullmatch(kept):
        raise ConfigError(
            f"{TOKEN_VARIABLE} must be 24 to 200 letters, digits, - or _: make one with "
            "`python -c 'import secrets; print(secrets.token_urlsafe(24))'`"
        )
    return kept or token_urlsafe(24)


def host_names(host: str) -> list[str]:
    """Names under which a browser may ask for us."""
    own = [] if is_loopback(host) else [socket.gethostname(), socket.getfqdn()]
    return ["localhost", host, *own, *filter(None, [_given_name()])]


def _given_name() -> str:
    """What browsers call the machine where it does not know, as in a container; or nothing."""
    name = os.environ.get(NAME_VARIABLE, "")
    if name and not NAME.fullmatch(name):
        raise ConfigError(f"{NAME_VARIABLE} must be a host name, without a port: {name!r} is none")
    return name


def _listen(host: str, port: int | None) -> socket.socket:
    """The port asked for; when none was, the usual one, or a free one where it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, USUAL_PORT if port is None else port), family=family)
    except OSError as error:
        if port is not None or error.errno != errno.EADDRINUSE:
            reason = error.strerror or str(error)
            raise ConfigError(f"cannot listen on {host} port {port}: {reason}") from error
    return socket.create_server((host, 0), family=family)


def _address_of(host: str) -> str:
    """What to write into the address: a host that means every interface is reached by a name."""
    if host in ("0.0.0.0", "::"):
        return _given_name() or socket.gethostname()
    return f"[{host}]" if ":" in host else host
