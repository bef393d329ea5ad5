"""reasoning-gym's problems with further tries: a wrong answer is told so, and may be corrected.

    task: gym:countdown
    environment: {kind: reasoning_gym, max_turns: 3}

The score is reasoning-gym's own, of the last answer.
"""

from collections.abc import Mapping
from functools import partial

from groupwise.environments.base import Environment, EnvironmentFactory, Reply, Turn
from groupwise.errors import DataError
from groupwise.rewards.gym import extract, score
from groupwise.types import Problem

NO_ANSWER = "There is no answer in <answer> </answer>."


class ReasoningGymEnvironment(Environment):
    """Ends with an answer that gets full marks, or with the limit on turns."""

    takes_cut_turns = True

    def __init__(self, problem: Problem, feedback: str) -> None:
        if "gym" not in problem.columns:
            raise DataError(
                f"problem {problem.id} does not come from reasoning-gym: use task=gym:NAME with "
                "environment=reasoning_gym"
            )
        self.gym, self.feedback, self.last = problem.columns["gym"], feedback, 0.0

    async def step(self, turn: Turn) -> Reply:
        self.last = score(turn.text, self.gym)
        if self.last >= 1.0:
            return Reply(done=True)
        said = self.feedback if extract(turn.text) is not None else f"{NO_ANSWER} {self.feedback}"
        return Reply(({"role": "user", "content": said},))

    async def score(self) -> Mapping[str, float | None]:
        return {"reasoning_gym": self.last}


def reasoning_gym_environment(feedback: str) -> EnvironmentFactory:
    """For `groupwise.train(config, environment=reasoning_gym_environment("Wrong. Try again."))`."""
    make = partial(ReasoningGymEnvironment, feedback=feedback)  # another process can make it too
    return EnvironmentFactory("reasoning_gym", make)
