"""A server that speaks OpenEnv's protocol, in this process: what the real package cannot be made to
do in a test (lose a connection, write nonsense), and what must be tested without it.
"""

import asyncio
import http
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

SCHEMAS: dict[str, dict[str, Any]] = {
    "echo": {"message": {"type": "string"}, "metadata": {"type": "object"}},
    "counter": {"by": {"type": "integer"}, "name": {"type": "string"}},
    "tools": {"type": {}, "tool_name": {}, "arguments": {}},
}
TITLES = {"echo": "EchoAction", "counter": "Move", "tools": "CallToolAction"}
LISTED = [{"name": "echo_message", "inputSchema": {"properties": {"message": {"type": "string"}}}}]


class Fake:
    def __init__(self, kind: str, sessions: int) -> None:
        self.kind, self.sessions, self.open, self.most = kind, sessions, 0, 0
        self.refusals = 0

    def is_left_alone(self, seconds: float = 10.0) -> bool:
        """No session is open. The server's thread sees the end of one a moment after its client."""
        until = time.monotonic() + seconds
        while self.open and time.monotonic() < until:
            time.sleep(0.01)
        return self.open == 0

    def answer_http(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.path != "/schema":
            return None
        schema = {"title": TITLES[self.kind], "type": "object", "properties": SCHEMAS[self.kind]}
        required = [name for name in ("by", "message") if name in SCHEMAS[self.kind]]
        body = json.dumps({"action": {**schema, "required": required}}).encode()
        headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(body))})
        return Response(http.HTTPStatus.OK, "OK", headers, body)

    async def handle(self, socket: ServerConnection) -> None:
        if self.open >= self.sessions:
            self.refusals += 1
            full = {"code": "CAPACITY_REACHED", "message": "full", "max_sessions": self.sessions}
            await socket.send(json.dumps({"type": "error", "data": full}))
            return
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await self.serve(socket)
        finally:
            self.open -= 1

    async def serve(self, socket: ServerConnection) -> None:
        count = 0
        async for text in socket:
            message = json.loads(text)
            if message["type"] == "close":
                return
            data, reply = message.get("data", {}), None
            if message["type"] == "mcp":
                reply = {"type": "mcp", "data": {"result": {"tools": LISTED}}}
            elif message["type"] == "reset":
                reply = observation(reset_observation(self.kind, data))
            elif "arguments" in data:
                reply = observation({"result": f"echo {data['arguments']['message']}"})
            elif "by" in data or self.kind == "counter":
                reply, count = moved(data, count)
            else:
                reply = echoed(data["message"])
            if reply == "lost":
                socket.transport.abort()
                return
            await socket.send(reply if isinstance(reply, str) else json.dumps(reply))


def observation(fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    data = {"observation": fields, "reward": None, "done": False, **more}
    return {"type": "observation", "data": data}


def reset_observation(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    if kind != "echo":
        return {"count": 0} if kind == "counter" else {}
    return {"echoed_message": f"ready {data.get('word', 'none')} {data['seed']}", "length": 0}


def moved(data: dict[str, Any], count: int) -> tuple[Any, int]:
    if not isinstance(data.get("by"), int):
        errors = [{"loc": ["by"], "msg": "Input should be a valid integer"}]
        error = {"code": "VALIDATION_ERROR", "message": "Invalid message", "errors": errors}
        return {"type": "error", "data": error}, count
    count += data["by"]
    return observation({"count": count}, reward=float(data["by"]), done=count >= 3), count


def echoed(message: str) -> Any:
    if message in ("lost", "nonsense", "[]"):
        return message
    if message == "fail":
        error = {"code": "EXECUTION_ERROR", "message": "illegal move"}
        return {"type": "error", "data": error}
    if message == "liar":
        return observation({"echoed_message": "x"}, reward="a lot")
    fields = {"echoed_message": message, "message_length": len(message)}
    return observation(fields, reward=len(message) / 10, done=message == "end")


@contextmanager
def fake_server(kind: str, sessions: int = 8) -> Iterator[tuple[str, Fake]]:
    fake, loop, port = Fake(kind, sessions), asyncio.new_event_loop(), []
    ready, stop = threading.Event(), asyncio.Event()

    async def run() -> None:
        async with serve(fake.handle, "127.0.0.1", 0, process_request=fake.answer_http) as server:
            port.append(next(iter(server.sockets)).getsockname()[1])
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield f"http://127.0.0.1:{port[0]}", fake
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
