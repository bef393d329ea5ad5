"""Runs an environment of verifiers in a process of its own, for groupwise.tasks.verifiers.

It is run as a folder, with the interpreter that has verifiers, and imports nothing of groupwise:

    .venv-verifiers/bin/python groupwise/tasks/verifiers_worker

Requests and answers are lines of JSON: {"id": 3, "do": "turn", ...} is answered with
{"id": 3, "result": ...} or {"id": 3, "error": "..."}. It ends when its standard input does.
"""

import asyncio
import json
import os
import sys
from typing import Any

# What the environment prints must not get between the answers.
ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

FOLDER = os.path.dirname(os.path.abspath(__file__))
LONGEST_LINE = 1 << 28


def main() -> None:
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != FOLDER]
    sys.path.append(FOLDER)  # last, so that it hides no module of an environment
    # Programs that verifiers starts want the tools of this interpreter's environment, such as uv.
    os.environ["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    from vf_episodes import Environments

    asyncio.run(serve(Environments()))


async def serve(environments: Any) -> None:
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader(limit=LONGEST_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    running: set[asyncio.Task[None]] = set()
    while line := await requests.readline():
        task = loop.create_task(answer(environments, json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


async def answer(environments: Any, request: dict[str, Any]) -> None:
    number, action = request.pop("id"), request.pop("do")
    try:
        said = {"result": await getattr(environments, f"do_{action}")(**request)}
    except BaseException as error:  # whatever the environment raises is told, and ends nothing
        said = {"error": f"{type(error).__name__}: {error}"}
        if isinstance(error, asyncio.CancelledError):
            said["error"] = "the episode was closed"
    # Rows may hold dates and the like, which JSON does not know.
    ANSWERS.write(json.dumps({"id": number, **said}, default=str) + "\n")
    ANSWERS.flush()


if __name__ == "__main__":
    main()
