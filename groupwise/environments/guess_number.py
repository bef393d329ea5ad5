"""Guess my number: the environment says higher or lower. A small example of an environment.

    user        Guess my number between 20 and 84. ...
    assistant   <think>20-84</think><answer>52</answer>
    user        lower
    assistant   <think>20-52</think><answer>36</answer>
    user        right

The episode ends with the right guess or with `environment.max_turns`. Its last turn is what the
recipe's rewards see, so the task's judge can tell whether the number was found.
"""

from groupwise.environments.base import Environment, Reply, Turn
from groupwise.rewards.arithmetic import extract
from groupwise.types import Problem


class GuessNumber(Environment):
    def __init__(self, problem: Problem) -> None:
        self.number = int(problem.columns["answer"])

    async def step(self, turn: Turn) -> Reply:
        guess = extract(turn.text)
        if guess is None:
            return _says("guess a number")
        if int(guess) == self.number:
            return _says("right", done=True)
        return _says("higher" if int(guess) < self.number else "lower")


def _says(text: str, *, done: bool = False) -> Reply:
    return Reply(({"role": "user", "content": text},), done=done)
