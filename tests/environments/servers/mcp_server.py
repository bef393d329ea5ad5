"""An MCP server as its SDK's documentation writes them, with some tools that misbehave."""

import os
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")
NOTES: list[str] = []


@server.tool()
def note(text: str) -> str:
    """Keeps a note, and says how many there are."""
    NOTES.append(text)
    return f"{len(NOTES)} notes"


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two integers."""
    return a + b


@server.tool()
def sleep(seconds: float) -> str:
    """Sleeps."""
    time.sleep(seconds)
    return "slept"


@server.tool()
def crash() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("not today")


if __name__ == "__main__":
    server.run(transport="stdio")
