"""An environment that another process can import without torch."""

from groupwise.environments.base import Reply, Turn
from groupwise.types import Problem


class Feedback:
    """Says whether the answer has the right digits, twice."""

    tools = ()

    def __init__(self, problem: Problem) -> None:
        self.problem, self.turns = problem, 0

    async def reset(self, problem: Problem, seed: int) -> Reply:
        return Reply()

    async def step(self, turn: Turn) -> Reply:
        self.turns += 1
        right = str(self.problem.columns["answer"]) in turn.text
        reply = ({"role": "user", "content": "yes" if right else "no"},)
        return Reply(reply, reward=float(right), done=self.turns == 2)

    async def score(self) -> dict[str, float | None]:
        return {"turns": float(self.turns)}

    async def close(self) -> None:
        pass
