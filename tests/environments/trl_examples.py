"""Tools, environments and rewards in the shapes of TRL's own examples and documentation.

A tool with a time limit by SIGALRM and a database; a word game whose reward function asks for
`environments`; an environment that makes up its own data and its own reward.
"""

import contextlib
import random
import signal
import sqlite3
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def timeout(seconds: int) -> Iterator[None]:
    def handler(signum: int, frame: Any) -> None:
        raise TimeoutError(f"Operation timed out after {seconds} seconds")

    signal.signal(signal.SIGALRM, handler)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def query(sql_command: str) -> list[tuple]:
    """
    Execute a read-only SQL command on the database.

    Args:
        sql_command: The SQL command to execute.

    Returns:
        A list of tuples containing the query results.
    """
    with timeout(1):
        conn = sqlite3.connect(":memory:")
        try:
            conn.execute("create table genes (name text)")
            conn.execute("insert into genes values ('JNKK')")
            return conn.execute(sql_command).fetchall()
        finally:
            conn.close()


class WordleEnv:
    """The game is over after a hit; a further guess raises."""

    def __init__(self) -> None:
        self.client: dict[str, Any] = {}

    def reset(self, **kwargs: Any) -> str | None:
        self.client = {"word": kwargs["word"], "attempts": 0}
        self.reward = 0.0
        self.done = False
        return "\nGuess a word of five letters."

    def guess(self, guess: str) -> str:
        """
        Make a guess in the Wordle environment.

        Args:
            guess: The guessed word, formatted as '[abcde]'

        Returns:
            The feedback message from the environment.
        """
        if self.done:
            raise ValueError("Game over.")
        word, guess = self.client["word"], guess.strip("[]")
        marks = [
            "G" if a == b else "Y" if a in word else "X" for a, b in zip(guess, word, strict=True)
        ]
        self.reward = marks.count("G") / 5
        self.done = guess == word
        return " ".join(marks)


def reward_func(environments: Any, **kwargs: Any) -> list[float]:
    return [env.reward for env in environments]


def short_func(completions: Any, environments: Any, word: Any, **kwargs: Any) -> list[float | None]:
    return [
        None if not env.done else -0.1 * sum(m["role"] == "tool" for m in messages)
        for messages, env, _ in zip(completions, environments, word, strict=True)
    ]


class MakesItsOwn:
    """The data and the reward are the environment's."""

    def reset(self, **kwargs: Any) -> str:
        self.number, self.said = random.randrange(1000), None
        return f"Say {self.number}."

    def say(self, number: int) -> str:
        """Says a number.

        Args:
            number: Which.
        """
        self.said = number
        return "heard"

    async def get_reward(self) -> float:
        return float(self.said == self.number)


class NoReward:
    def reset(self, **kwargs: Any) -> None:
        assert "environment" not in kwargs

    def look(self) -> str:
        """Looks."""
        return "nothing"
