"""An evaluation may score while answers for training are scored in another thread."""

import time
from concurrent.futures import ThreadPoolExecutor

from groupwise.rewards.base import Reward
from groupwise.rewards.scorer import Scorer
from groupwise.types import Problem


def test_threads_take_turns() -> None:
    inside: list[int] = []
    most: list[int] = []

    def slow(completion: str) -> float:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.02)
        inside.pop()
        return float(len(completion))

    with Scorer([Reward("slow", slow)], 10, "stop") as scorer, ThreadPoolExecutor(4) as threads:
        texts = ["a" * n for n in range(1, 5)]
        tasks = [threads.submit(scorer.score, [Problem("p", "?")], [text]) for text in texts]
        scores = [task.result()["slow"] for task in tasks]
    assert scores == [[1.0], [2.0], [3.0], [4.0]]
    assert max(most) == 1
