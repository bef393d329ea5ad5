"""Servers under load: clients that are slow, half open, malformed, oversized or without a token.

All of them at once, and beside them an honest client, which must get every answer in time. The
server's memory stays bounded, and SIGTERM ends it.
"""

import contextlib
import os
import pathlib
import random
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from attack import bodies
from attack.case import Case, Outcome
from attack.commands import base
from attack.isolated import children

TOKEN = "a-token-for-the-campaign-0123456789"
PATIENCE = 20.0
"""Seconds within which an honest request must be answered under load."""
GROWTH_KB = 600_000
SERVERS = ("reference", "rollouts", "gateway", "viewer")
BEHAVIOURS = (
    "says nothing", "half a head", "a byte now and then", "no token", "wrong token", "half a body",
    "slow reader", "malformed", "oversized", "many headers", "replay", "garbage", "pipelined",
)  # fmt: skip


def make(rng: random.Random, root: pathlib.Path) -> Case:
    clients = rng.choice((50, 100, 200))
    chosen = rng.sample(BEHAVIOURS, rng.randint(3, len(BEHAVIOURS)))
    inputs = {"server": rng.choice(SERVERS), "clients": clients, "behaviours": chosen}
    return Case("servers", {**inputs, "seed": rng.randrange(2**31), "seconds": 6})


def command(server: str, root: pathlib.Path) -> list[str]:
    if server == "viewer":
        return ["view", str(base("run", root)), "--port", "0", "--no-browser"]
    return ["serve", server, "tiny", "--port", "0", "--device", "cpu"]


class Server:
    """A server's process, from its address on its first line to its end."""

    def __init__(self, name: str, root: pathlib.Path) -> None:
        here = str(pathlib.Path(__file__).parent.parent)
        token = {"GROUPWISE_TOKEN": TOKEN, "GROUPWISE_VIEW_TOKEN": TOKEN}
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "groupwise", *command(name, root)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **token, "PYTHONPATH": here, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self.process.stdout is not None
        address = urlsplit(self.process.stdout.readline().strip())
        self.place = (str(address.hostname), address.port or 0)

    def memory_kb(self) -> int:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def ask(self, raw: bytes, seconds: float = PATIENCE) -> bytes:
        """The whole reply to a request, which may take so long."""
        deadline, reply = time.monotonic() + seconds, b""
        with socket.create_connection(self.place, timeout=seconds) as connection:
            connection.sendall(raw)
            while time.monotonic() < deadline and (part := connection.recv(65536)):
                reply += part
                if self.name == "viewer" and _is_whole(reply):  # it keeps connections
                    break
        return reply


def _is_whole(reply: bytes) -> bool:
    head, _, body = reply.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
    return length.isdigit() and len(body) >= int(length)


def honest(server: str, root: pathlib.Path) -> bytes:
    path = {"reference": "/model", "rollouts": "/model", "gateway": "/v1/models"}
    return head("GET", path.get(server, "/api/runs")) + b"\r\n"


def head(method: str, path: str, token: str = TOKEN, length: int | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}"]
    lines += [f"Cookie: groupwise-view-PORT={token}"]
    lines += [f"Content-Length: {length}"] if length is not None else []
    return ("\r\n".join(lines) + "\r\n").encode()


def opening(behaviour: str, server: str, rng: random.Random, root: pathlib.Path) -> bytes:
    """What a client sends first."""
    good = bodies.GOOD[server](rng, root)[0]
    path, body = good["path"], b"x" * 5000
    post = head("POST", path, length=len(body)) + b"\r\n"
    return {
        "says nothing": b"",
        "half a head": head("POST", path)[: rng.randint(1, 60)],
        "a byte now and then": b"G",
        "no token": f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
        "wrong token": head("GET", path, "x" * rng.randint(1, 100)) + b"\r\n",
        "half a body": post + body[:100],
        "slow reader": head("GET", path if server == "viewer" else "/metrics") + b"\r\n",
        "malformed": post + rng.randbytes(5000),
        "oversized": head("POST", path, length=10**13) + b"\r\n" + body,
        "many headers": head("GET", path) + b"".join(b"X-%d: y\r\n" % i for i in range(5000)),
        "replay": (head("GET", path) + b"\r\n") * 3,
        "garbage": rng.randbytes(500),
        "pipelined": post + body + post + body,
    }[behaviour]


def run(case: Case, root: pathlib.Path) -> Outcome:
    inputs, before = case.inputs, children()
    rng = random.Random(inputs["seed"])
    server = Server(inputs["server"], root)
    try:
        problem = _under_load(server, inputs, rng, root)
        server.process.send_signal(signal.SIGTERM)
        try:
            code = server.process.wait(timeout=45)
        except subprocess.TimeoutExpired:
            return Outcome("hang", "SIGTERM did not end it")
    finally:
        server.process.kill()
        assert server.process.stdout is not None
        output = server.process.stdout.read()
        server.process.wait()
    if problem is not None:
        return Outcome(problem.verdict, problem.detail + output[-3000:])
    if children() - before:
        return Outcome("orphan", str(children() - before))
    if "Traceback" in output or code not in (0, -signal.SIGTERM):
        return Outcome("traceback", f"exit code {code}\n{output[-3000:]}")
    return Outcome("accepted")


def _under_load(
    server: Server, inputs: dict[str, Any], rng: random.Random, root: pathlib.Path
) -> Outcome | None:
    ask = honest(server.name, root).replace(b"PORT", str(server.place[1]).encode())
    if b" 200 " not in server.ask(ask)[:20]:
        return Outcome("traceback", "it answers nobody")
    memory, slowest = server.memory_kb(), 0.0
    clients = [
        _connected(server, rng.choice(inputs["behaviours"]), rng, root)
        for _ in range(inputs["clients"])
    ]
    deadline = time.monotonic() + inputs["seconds"]
    try:
        while time.monotonic() < deadline:
            began = time.monotonic()
            try:
                reply = server.ask(ask)
            except OSError as error:
                return Outcome("hang", f"an honest client got {error!r}")
            slowest = max(slowest, time.monotonic() - began)
            if b" 200 " not in reply[:20] and b" 503 " not in reply[:20]:
                return Outcome("hang", f"an honest client got {reply[:200]!r}")
            _go_on(clients, rng)
            time.sleep(0.05)
        if b" 200 " not in server.ask(ask)[:20]:
            time.sleep(1.5)  # a 503 says when to come back
            if b" 200 " not in server.ask(ask)[:20]:
                return Outcome("hang", "an honest client starves")
    except OSError as error:
        return Outcome("hang", f"an honest client got {error!r}")
    finally:
        for client in clients:
            client.close()
    growth = server.memory_kb() - memory
    return Outcome("lost", f"memory grew by {growth} kB") if growth > GROWTH_KB else None


def _connected(
    server: Server, behaviour: str, rng: random.Random, root: pathlib.Path
) -> socket.socket:
    client = socket.create_connection(server.place, timeout=PATIENCE)
    sent = opening(behaviour, server.name, rng, root)
    with contextlib.suppress(OSError):
        client.sendall(sent.replace(b"PORT", str(server.place[1]).encode()))
    client.setblocking(False)
    return client


def _go_on(clients: list[socket.socket], rng: random.Random) -> None:
    """A few of them send another byte; those that were answered stay and read nothing."""
    with selectors.DefaultSelector() as selector:
        for client in rng.sample(clients, min(20, len(clients))):
            with contextlib.suppress(OSError, ValueError):
                selector.register(client, selectors.EVENT_WRITE)
        for key, _ in selector.select(timeout=0):
            with contextlib.suppress(OSError):
                key.fileobj.send(b"x")  # type: ignore[union-attr]
