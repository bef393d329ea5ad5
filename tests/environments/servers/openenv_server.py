"""A server made with the openenv package: python openenv_server.py KIND PORT SESSIONS

echo: the package's own template. counter: an action of two fields. tools: MCP tools.
"""

import sys
import time
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    echoed_message: str
    message_length: int = 0


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, word: str = "none", **row: Any) -> EchoObservation:
        return EchoObservation(echoed_message=f"ready {word} {seed}")

    def step(self, action: EchoAction, **options: Any) -> EchoObservation:
        if action.message == "fail":
            raise ValueError("illegal move")
        if action.message == "hang":
            time.sleep(20)
        length = len(action.message)
        return EchoObservation(
            echoed_message=action.message,
            message_length=length,
            reward=length / 10,
            done=action.message == "end",
        )

    @property
    def state(self) -> State:
        return State()


class Move(Action):
    """Moves the counter."""

    by: int
    name: str = "x"


class Count(Observation):
    count: int = 0


class Counter(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, **row: Any) -> Count:
        self.count = 0
        return Count()

    def step(self, action: Move, **options: Any) -> Count:
        self.count += action.by
        return Count(count=self.count, reward=float(action.by), done=self.count >= 3)

    @property
    def state(self) -> State:
        return State()


def tools_app(sessions: int) -> Any:
    from fastmcp import FastMCP
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    class Tools(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            server = FastMCP("echo")

            @server.tool
            def echo_message(message: str) -> str:
                """Echoes a message."""
                return f"echo {message}"

            super().__init__(server)

        def reset(self, **row: Any) -> Observation:
            return Observation()

        def _step_impl(self, action: Action, *rest: Any, **options: Any) -> Observation:
            return Observation()

        @property
        def state(self) -> State:
            return State()

    return create_fastapi_app(Tools, CallToolAction, CallToolObservation, sessions)


if __name__ == "__main__":
    kind, port, sessions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if kind == "tools":
        app = tools_app(sessions)
    elif kind == "counter":
        app = create_fastapi_app(Counter, Move, Count, sessions)
    else:
        app = create_fastapi_app(Echo, EchoAction, EchoObservation, sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
