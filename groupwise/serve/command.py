"""`groupwise serve reference`: load a model and answer until stopped.

SIGTERM and Ctrl-C stop it gracefully: no new questions, those at hand are answered, exit code 0.
"""

import logging
import re
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from secrets import token_urlsafe
from types import FrameType

from groupwise.errors import ConfigError, MissingExtraError
from groupwise.policy.load import Policy, load_policy, pick_device, pick_dtype
from groupwise.serve.identity import identify
from groupwise.serve.wire import Limits
from groupwise.serve.worker import Worker

log = logging.getLogger("groupwise")

GRACE_SECONDS = 30
SPARE_CONNECTIONS = 32
"""Beside those whose questions wait: for health checks, and bodies on their way."""


@dataclass(frozen=True)
class Listening:
    """Where and for whom. `tokens`: in one forward pass; `queue`: questions that may wait."""

    host: str = "127.0.0.1"
    port: int = 8650
    token: str | None = None
    tokens: int = 32768
    queue: int = 64


def serve_reference(
    model: str,
    device: str,
    precision: str,
    quantization: str | None,
    listening: Listening,
    announce: Callable[[str, str | None], None],
) -> None:
    """`announce(address, token)` once it answers; the token only where it was made up here."""
    try:
        import uvicorn

        from groupwise.serve.app import build_app
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "starlette", "serve") from error
    given = None if listening.token is None else check_token(listening.token)
    token = given or token_urlsafe(24)
    found = pick_device(device)
    with _listen(listening.host, listening.port) as listens:
        dtype = pick_dtype(precision, found)
        policy = load_policy(model, found, dtype, quantization=quantization)
        policy.model.requires_grad_(False)
        worker = Worker(policy, listening.tokens, listening.queue)
        app = build_app(worker, limits_of(policy, listening.tokens), identify(policy), token)
        config = uvicorn.Config(
            app,
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


def limits_of(policy: Policy, tokens: int) -> Limits:
    config = policy.model.config.get_text_config()
    return Limits(tokens, policy.vocab, getattr(config, "max_position_embeddings", None))


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
