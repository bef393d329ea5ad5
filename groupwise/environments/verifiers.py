"""Environments of verifiers, unchanged: its datasets, its loop between turns, its rubrics.

    environment:
      kind: verifiers
      env: alphabet-sort                        # an installed package, or file.py:load_environment
      args: {max_turns: 3}                      # of its load_environment
      python: .venv-verifiers/bin/python        # the interpreter that has verifiers

`groupwise.tasks.verifiers` has its problems, and the process that it runs in.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from groupwise.environments.base import (
    Environment,
    EnvironmentFactory,
    EnvironmentFailed,
    Reply,
    ToolSpec,
    Turn,
)
from groupwise.environments.calls import as_message
from groupwise.tasks.json_lines_process import JsonLinesProcess, ProcessFailed
from groupwise.tasks.verifiers import name_of, start_environment
from groupwise.types import Problem

log = logging.getLogger("groupwise")


class VerifiersEnvironment(Environment):
    takes_cut_turns = True  # as verifiers does: rubrics see what was cut off

    def __init__(self, worker: JsonLinesProcess, name: str) -> None:
        self.worker, self.name, self.episode = worker, name, uuid4().hex

    async def reset(self, problem: Problem, seed: int) -> Reply:
        given = problem.prompt
        prompt = given if isinstance(given, str) else [dict(message) for message in given]
        begun = await self._ask("begin", row={**problem.columns, "prompt": prompt})
        if begun["done"]:
            raise EnvironmentFailed("ended before the model's first turn")
        self.tools, said = tools_of(begun["tools"]), begun["messages"]
        plain = [{"role": "text", "content": prompt}] if isinstance(prompt, str) else prompt
        if said == plain:
            return Reply()
        return Reply(tuple(said), replaces=True)

    async def step(self, turn: Turn) -> Reply:
        message = as_message(turn) | ({"cut": True} if turn.stop == "length" else {})
        said = await self._ask("step", message=message)
        return Reply(tuple(said["messages"]), done=said["done"])

    async def score(self) -> Mapping[str, float | None]:
        scored = await self._ask("score")
        for complaint in scored["complaints"]:
            log.warning("%s: verifiers says: %s", self.name, complaint)
        return {self.name: scored["reward"]}

    async def close(self) -> None:
        await self._ask("close")

    async def _ask(self, do: str, **fields: Any) -> Any:
        try:
            # In a thread: the process may be one that does not read.
            send = partial(self.worker.send, do, episode=self.episode, **fields)
            return await asyncio.wrap_future(await asyncio.to_thread(send))
        except ProcessFailed as error:
            raise EnvironmentFailed(f"failed: {error}") from None
        except asyncio.CancelledError:  # it took too long
            self.worker.end_if_blocked()
            raise


def verifiers_environment(
    env: str, args: Mapping[str, Any] | None = None, python: str | None = None
) -> EnvironmentFactory:
    """For `groupwise.train(config, environment=verifiers_environment("wordle"), task=...)`.

    The task is `groupwise.tasks.verifiers.verifiers_task` of the same arguments.
    """
    worker, described = start_environment(env, args, python)
    name = name_of(env)

    def make(problem: Problem) -> VerifiersEnvironment:
        return VerifiersEnvironment(worker, name)

    tools = tools_of(described["tools"])
    return EnvironmentFactory(name, make, tools=tools, isolate=False, thread="shared")


def tools_of(described: Any) -> tuple[ToolSpec, ...]:
    return tuple(
        ToolSpec(tool["name"], tool["description"], tool["parameters"]) for tool in described
    )
