"""An environment of three turns, whose answer to every tenth call takes two seconds.

It is in a file of its own so that other processes can import it.
"""

import time
import zlib
from typing import Any

from groupwise.environments.base import Reply, Turn
from groupwise.types import Problem

TURNS = 3
SLEEP_SECONDS = 2.0


class Quick:
    seconds = 0.0
    tools = ()

    def __init__(self, problem: Problem) -> None:
        self.problem, self.turns = problem, 0

    async def reset(self, problem: Problem, seed: int) -> Reply:
        return Reply()

    async def step(self, turn: Turn) -> Reply:
        self.turns += 1
        # By what the model wrote: the same calls are slow whenever the same answers are sampled.
        if zlib.crc32(f"{self.problem.id} {self.turns} {turn.text}".encode()) % 10 == 0:
            time.sleep(self.seconds)
        reply: dict[str, Any] = {"role": "user", "content": "Go on."}
        return Reply((reply,), done=self.turns == TURNS)

    async def score(self) -> dict[str, float | None]:
        return {}

    async def close(self) -> None:
        pass


class Slow(Quick):
    seconds = SLEEP_SECONDS
