"""Environments for tests of the bench: sound ones, and ones that pay for the wrong thing."""

import random
from typing import Any

from groupwise.environments.base import EnvironmentFactory, Reply, ToolSpec, Turn
from groupwise.types import Problem


class SecondTry:
    """Sound: a right answer ends it, a wrong one may be tried once more."""

    tools: tuple[ToolSpec, ...] = ()

    def __init__(self, problem: Problem) -> None:
        self.answer, self.turns = str(problem.columns["answer"]), 0

    async def reset(self, problem: Problem, seed: int) -> Reply:
        return Reply()

    async def step(self, turn: Turn) -> Reply:
        self.turns += 1
        right = f"<answer>{self.answer}</answer>" in turn.text
        text = "Right." if right else "Wrong. Try again."
        return Reply(self.says(text), reward=float(right), done=right or self.turns == 2)

    def says(self, text: str) -> tuple[dict[str, str], ...]:
        return ({"role": "user", "content": text},)

    async def score(self) -> dict[str, float | None]:
        return {}

    async def close(self) -> None:
        pass


class Flaky(SecondTry):
    """Other words each time, whatever the seed."""

    async def step(self, turn: Turn) -> Reply:
        reply = await super().step(turn)
        return Reply(self.says(f"{random.random()}"), reply.reward, reply.done)


class OtherStart(SecondTry):
    async def reset(self, problem: Problem, seed: int) -> Reply:
        return Reply(self.says(f" Your number is {random.random()}."))


class Fragile(SecondTry):
    async def step(self, turn: Turn) -> Reply:
        if not turn.text:
            raise ValueError("nothing was said")
        return await super().step(turn)


class Checked(SecondTry):
    """The verifier is a tool: it can be asked before the answer is given."""

    tools = (ToolSpec("check", "", {"properties": {"value": {"type": "string"}}}),)

    async def step(self, turn: Turn) -> Reply:
        if not turn.calls:
            return Reply((), float(f"<answer>{self.answer}</answer>" in turn.text), True)
        verdicts = [c.arguments.get("value") == self.answer for c in turn.calls]
        return Reply(tuple({"role": "tool", "content": str(verdict)} for verdict in verdicts))


class Talkative(SecondTry):
    """A name that is not among the tools gives the answer away."""

    tools = (ToolSpec("look"),)

    async def step(self, turn: Turn) -> Reply:
        if any(call.name == "solution" for call in turn.calls):
            return Reply(self.says(f"It is {self.answer}."))
        return Reply((), float(f"<answer>{self.answer}</answer>" in turn.text), True)


class Submitted:
    """As TRL has them: no reward but the one that `submit` leaves behind, 0 at first."""

    def __init__(self) -> None:
        self.reward = 0.0

    def reset(self, answer: str, **row: Any) -> None:
        self.answer = str(answer)

    def submit(self, value: str) -> str:
        """Hands the answer in.

        Args:
            value: The answer.
        """
        self.reward = 1.0 if value == self.answer else -1.0
        return "handed in"

    def get_reward(self) -> float:
        return self.reward


class Attempted(Submitted):
    """Doing nothing costs more than a wrong answer."""

    def __init__(self) -> None:
        self.reward = -2.0


def factory(kind: type[SecondTry]) -> EnvironmentFactory:
    return EnvironmentFactory(kind.__name__, kind)
